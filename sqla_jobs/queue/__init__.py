"""Verbs of the queue: enqueue, claim, settle, renew, rescue, control."""
