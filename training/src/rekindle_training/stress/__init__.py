"""Checks of the device on which a rank trains, made while training stands. The manager orders them, a session begins them."""
