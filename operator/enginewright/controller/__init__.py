"""The loop: observe into a cache, queue keys, gather facts, plan, execute, write one status.

Level-triggered: an event only says that a key is worth a look, never what happened.
"""
