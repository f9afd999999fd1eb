"""List the promises in docs/profiles.md."""

from __future__ import annotations

from ledger.claim import ANY, Claim

PROFILES = "tests/unit/policy/test_profiles.py"
PROFILE_PAGE = "docs/profiles.md"
PUBLISHED = "tests/servers/test_published.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="profiles-started",
        sentence="For most other profiles, the tests only install the server, start it without an account and list its tools.",
        tests=("tests/servers/test_profiles.py::test_a_profiles_server_starts_and_lists_its_tools",),
        source=PROFILE_PAGE,
    ),
    Claim(
        id="profile-reasons",
        sentence="Every grant in a profile has a reason.",
        tests=(f"{PROFILES}::test_every_grant_has_a_reason",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="profile-no-paths",
        sentence="A profile never grants a path by itself, and never drops a control (a wall or a limit).",
        tests=(f"{PROFILES}::test_no_profile_grants_a_path_or_degrades",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="profile-arguments",
        sentence="The profiles of these servers grant each path that you name in the arguments.",
        tests=(
            f"{PROFILES}::test_paths_in_arguments_are_granted_if_the_profile_says_so",
            f"{PUBLISHED}::test_a_published_server_works_inside",
        ),
        source=PROFILE_PAGE,
    ),
    Claim(
        id="profile-secrets",
        sentence="If a profile names secrets, such as that token, corral passes on those that are set in its own environment, and leaves out the others.",
        tests=(f"{PROFILES}::test_only_secrets_that_are_set_are_passed",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="profiles-tried",
        sentence="For twelve of the profiles, tests use the published server through the official SDK, and also check that the walls stop forbidden acts.",
        tests=(
            f"{PUBLISHED}::test_a_published_server_works_inside",
            f"{PUBLISHED}::test_a_published_server_cannot_do_forbidden_acts",
        ),
        source=PROFILE_PAGE,
    ),
)  # fmt: skip
