"""Measurements: ratios in one run on one server, with durability on."""
