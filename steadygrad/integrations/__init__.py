"""Layers of this package inside other libraries. Each module imports its library, so import the one that you need.

`steadygrad.integrations.torchrl` has modules for TorchRL, `steadygrad.integrations.sb3` a policy for sb3-contrib.
"""
