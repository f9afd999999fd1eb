"""Enforce the network allowlist, outside the sandbox.

rules                       the entries of `network.allow`
addresses                   IP addresses and networks
guard                       the addresses that are refused unless the policy admits them
destinations                the check of each destination, for both engines
gateway/                    the engine for Linux: an event loop for connections, DNS and listeners
http_proxy/                 the engine for macOS and Windows: an HTTP proxy with threads
budgets, dial_attempts, host_proxy, sockets, tls_hello, traffic     shared by both engines
"""
