"""The promises of docs/profiles.md."""

from __future__ import annotations

from ledger.claim import ANY, Claim

PROFILES = "tests/unit/policy/test_profiles.py"
PROFILE_PAGE = "docs/profiles.md"
PUBLISHED = "tests/servers/test_published.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="profile-reasons",
        sentence="Every grant in it has its reason,",
        tests=(f"{PROFILES}::test_every_grant_has_its_reason",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="profile-no-paths",
        sentence="no profile grants a path or lets a control go.",
        tests=(f"{PROFILES}::test_no_profile_grants_a_path_or_degrades",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="profile-arguments",
        sentence="Naming one there grants it.",
        tests=(
            f"{PROFILES}::test_paths_in_the_arguments_are_granted_where_the_profile_says_so",
            f"{PUBLISHED}::test_a_published_server_works_inside",
        ),
        source=PROFILE_PAGE,
    ),
    Claim(
        id="profile-secrets",
        sentence="an absent one is left out.",
        tests=(f"{PROFILES}::test_secrets_count_as_far_as_they_are_set",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="profiles-tried",
        sentence="and with acts that the server must not be able to do.",
        tests=(
            f"{PUBLISHED}::test_a_published_server_works_inside",
            f"{PUBLISHED}::test_what_it_must_not_do",
        ),
        source=PROFILE_PAGE,
    ),
)  # fmt: skip
