"""Questions to a cluster that change nothing there: permissions, disks, newest timestamps."""
