"""The registry of hooks, and the notification of hooks that only inform."""
