"""What the daemon says to the host it runs on: logs and the service manager."""
