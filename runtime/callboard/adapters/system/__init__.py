"""The machine: clock, files, logs, web server, installation, and temporary folders."""
