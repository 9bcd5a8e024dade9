"""The command line `mirrorlake`. Modules import what is heavy only when a command needs it."""
