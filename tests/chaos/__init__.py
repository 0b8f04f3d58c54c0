"""Real clusters under load while their servers are killed, frozen and restarted: `make chaos SECONDS=600 SEED=n`."""
