"""The walls round commands: which level a machine can do, what a command may touch, and how that is put up."""
