"""What schedulers know beside graphs: costs of devices, and what a plan does that is slow."""
