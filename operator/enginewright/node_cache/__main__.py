"""Run as `python -m enginewright.node_cache`."""

from enginewright.node_cache.main import main

if __name__ == "__main__":
    main()
