"""The demo: the application at work, with a worker killed midway, and the proof."""
