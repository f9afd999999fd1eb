"""The network allowlist, without the sandbox around it.

rules, addresses, guard     entries of `network.allow`; IP addresses; those that are never dialled
destinations                the check of where a target may connect to, for both engines
gateway/                    the engine for Linux: one event loop, also for DNS and published ports
http_proxy/                 the engine for macOS and Windows: an HTTP proxy with threads
budgets, dial_attempts, host_proxy, sockets, tls_hello, traffic     what both engines use
"""
