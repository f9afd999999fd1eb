"""List the promises in docs/python.md."""

from __future__ import annotations

from ledger.claim import ANY, Claim

PROFILES = "tests/unit/policy/test_profiles.py"
PUBLISHED = "tests/servers/test_published.py"
FRAMEWORKS = "tests/servers/test_frameworks.py"
POOL = "tests/linux/test_pool.py"
PYTHON_PAGE = "docs/python.md"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="sdk-generations",
        sentence="`sandboxed` works with `mcp` 1.x and 2.x.",
        tests=(f"{PUBLISHED}::test_both_generations_of_the_sdk_start_servers",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-fastmcp",
        sentence="with FastMCP's `StdioTransport`.",
        tests=(f"{PUBLISHED}::test_fastmcp_starts_servers",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-dicts",
        sentence="The parameters can also be a dict, of one server or of several.",
        tests=(
            f"{PROFILES}::test_sandboxed_keeps_the_other_keys_of_a_servers_dict",
            f"{PROFILES}::test_every_server_of_a_dict_runs_in_a_sandbox",
        ),
        source=PYTHON_PAGE,
        where=ANY,
    ),
    Claim(
        id="sdk-dict-errors",
        sentence="otherwise `sandboxed` raises an error.",
        tests=(f"{PROFILES}::test_a_dict_with_an_unknown_server_is_an_error",),
        source=PYTHON_PAGE,
        where=ANY,
    ),
    Claim(
        id="sdk-whole-environment",
        sentence="Then corral passes on only those variables that were added or changed.",
        tests=(
            f"{PROFILES}::test_a_copy_of_the_whole_environment_is_not_passed_on",
            f"{FRAMEWORKS}::test_a_framework_starts_its_servers_in_the_sandbox",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-frameworks",
        sentence="Tests run each of these examples with the framework that it names.",
        tests=(f"{FRAMEWORKS}::test_a_framework_starts_its_servers_in_the_sandbox",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-environment",
        sentence="corral passes the variables in `env` on to the server. If the name of a variable looks like that of a secret, corral treats the variable as a secret.",
        tests=(
            f"{PUBLISHED}::test_both_generations_of_the_sdk_start_servers",
            f"{PROFILES}::test_parameters_for_an_sdk_name_every_variable_once",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-mistakes",
        sentence="If the policy has a mistake, `sandboxed` raises an error, before anything starts.",
        tests=(f"{PROFILES}::test_mistakes_in_a_policy_are_raised_before_anything_starts",),
        source=PYTHON_PAGE,
        where=ANY,
    ),
    Claim(
        id="sdk-imports",
        sentence="corral runs with the Python that called `sandboxed`. It imports `mcp` or `fastmcp` only if you pass an object of these packages.",
        tests=(f"{PROFILES}::test_no_sdk_is_imported_and_corral_runs_with_the_same_python",),
        source=PYTHON_PAGE,
        where=ANY,
    ),
    Claim(
        id="sdk-example",
        sentence="is a small agent with two servers from the registries.",
        tests=(f"{PUBLISHED}::test_the_example_agent_works",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="pool-once",
        sentence="Each spare is used once.",
        tests=(
            f"{POOL}::test_a_spare_sandbox_is_used_for_one_launch_and_has_an_ordinary_report",
            f"{POOL}::test_each_of_several_launches_at_once_runs_its_command_once",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="pool-nothing-shared",
        sentence="Launches do not share files or memory.",
        tests=(
            f"{POOL}::test_a_launch_sees_nothing_of_an_earlier_one",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="pool-policy",
        sentence="corral reads a policy file once, when the pool is made, but reads your [ceilings](policy.md#ceilings) at each launch.",
        tests=(f"{POOL}::test_a_spare_sandbox_has_the_pools_policy_and_the_users_current_ceilings",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="pool-fit",
        sentence="It launches the program without a spare if something has changed since the spare was made: the program, a granted file, a system file, a mount, or a secret in a granted directory, such as a new `.env`.",
        tests=(
            f"{POOL}::test_a_spare_sandbox_is_not_used_after_its_grant_was_replaced_or_got_a_secret",
            f"{POOL}::test_a_spare_sandbox_is_not_used_after_a_mount_or_system_file_changed",
            "tests/linux/test_attacks_on_spares.py::test_a_spare_sandbox_is_not_used_if_a_secret_or_protected_file_lost_its_mask",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="pool-no-secret",
        sentence="A waiting spare does not contain secrets. It gets its environment together with its command.",
        tests=(
            f"{POOL}::test_a_spare_sandbox_has_every_wall_and_no_descriptor_of_corral",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="pool-ends",
        sentence="A spare ends when its pool is closed, or when the program that made the pool ends.",
        tests=(
            f"{POOL}::test_a_spare_sandbox_outlives_the_process_that_forked_it_but_not_its_pool",
            f"{POOL}::test_a_spare_sandbox_ends_with_its_caller_even_if_a_fork_lives_on",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-own-directory",
        sentence="A policy cannot let a server write to the directories of `sys.path`, because your program, outside of the walls, would run code that the server puts there.",
        tests=("tests/unit/policy/test_own_files.py::test_directories_of_modules_cannot_be_written",),
        source=PYTHON_PAGE,
        where=ANY,
    ),
    Claim(
        id="pool-death",
        sentence="If a spare has died, corral launches the program without one, and no command is lost or run twice.",
        tests=(
            f"{POOL}::test_a_launch_works_after_its_spare_sandbox_was_killed",
        ),
        source=PYTHON_PAGE,
    ),
)  # fmt: skip
