"""`enginewright preflight`: what the Jobs would find, on this machine, before anything is applied.

It runs the stages of the Jobs themselves, in separate processes and temporary folders, so a laptop
and a cluster cannot come to different results.
"""
