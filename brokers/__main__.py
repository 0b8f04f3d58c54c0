"""Real brokers in the background: ``python -m brokers start | stop | status``."""

from brokers.background import main

if __name__ == "__main__":
    main()
