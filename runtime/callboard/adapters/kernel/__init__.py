"""Processes as the kernel of the operating system reports them."""
