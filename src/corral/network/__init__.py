"""Enforce the network allowlist, outside the sandbox.

rules, addresses, guard     entries of `network.allow`; IP addresses; addresses refused by default
destinations                the check of each destination, for both engines
gateway/                    the engine for Linux: an event loop for connections, DNS and listeners
http_proxy/                 the engine for macOS and Windows: an HTTP proxy with threads
budgets, dial_attempts, host_proxy, sockets, tls_hello, traffic     shared by both engines
"""
