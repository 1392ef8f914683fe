"""`enginewright preflight`: what the Jobs would find, on this machine, before anything is applied.

It runs the stages of the Jobs themselves, in processes of their own and on folders of its own, so a
laptop and a cluster cannot come to different answers.
"""
