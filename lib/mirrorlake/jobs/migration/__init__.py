"""Takes a flow over from MirrorMaker 2, and hands it back; infers the map from the contents of both logs."""
