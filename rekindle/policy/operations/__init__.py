"""What people and platforms ask for: moves of links, checks of devices, upgrades of switches."""
