"""List the Windows constants that modules outside of `abi` define, each with its name in the
headers.
"""

from __future__ import annotations

from corral.paths import links
from corral.platforms.windows.files import access_list
from corral.platforms.windows.files import access_list as capabilities
from corral.platforms.windows.mechanisms import (
    job,
    network_capabilities,
    restricted_token,
)
from corral.platforms.windows.probes import trial
from corral.programs import windows_disk, windows_pe_resources

NUMBERS = {
    "ACCESS_ALLOWED_ACE_TYPE": access_list.ACCESS_ALLOWED,
    "OBJECT_INHERIT_ACE": access_list.OBJECT_INHERIT,
    "CONTAINER_INHERIT_ACE": access_list.CONTAINER_INHERIT,
    "INHERIT_ONLY_ACE": access_list.INHERIT_ONLY,
    "INHERITED_ACE": access_list.INHERITED,
    "DELETE": access_list.DELETE,
    "SYNCHRONIZE": access_list.SYNCHRONIZE,
    "FILE_GENERIC_READ": access_list.GENERIC_READ,
    "FILE_GENERIC_EXECUTE": access_list.GENERIC_EXECUTE,
    "FILE_GENERIC_WRITE": access_list.GENERIC_WRITE,
    "SE_DACL_PRESENT": access_list.DACL_PRESENT,
    "SE_DACL_PROTECTED": access_list.DACL_PROTECTED,
    "SE_SELF_RELATIVE": access_list.SELF_RELATIVE,
    "SE_DACL_AUTO_INHERIT_REQ": access_list.DACL_AUTO_INHERIT_REQUIRED,
    "SE_DACL_AUTO_INHERITED": access_list.DACL_AUTO_INHERITED,
    "IO_REPARSE_TAG_APPEXECLINK": windows_disk.APP_EXECUTION_LINK,
    "STATUS_CONTROL_C_EXIT": job.KILLED,
    "IO_REPARSE_TAG_MOUNT_POINT": links.JUNCTION,
    "IMAGE_DIRECTORY_ENTRY_RESOURCE": windows_pe_resources.RESOURCE_DIRECTORY,
    "RT_RCDATA": windows_pe_resources.RT_RCDATA,
    "IMAGE_NT_OPTIONAL_HDR32_MAGIC": windows_pe_resources.PE32,
    "IMAGE_NT_OPTIONAL_HDR64_MAGIC": windows_pe_resources.PE32_PLUS,
    "offsetof(IMAGE_OPTIONAL_HEADER32, DataDirectory)": windows_pe_resources.DIRECTORIES_AT[
        windows_pe_resources.PE32
    ],
    "offsetof(IMAGE_OPTIONAL_HEADER64, DataDirectory)": windows_pe_resources.DIRECTORIES_AT[
        windows_pe_resources.PE32_PLUS
    ],
    "IMAGE_RESOURCE_DATA_IS_DIRECTORY": windows_pe_resources.SUBDIRECTORY,
}
STATUSES = (
    *("STATUS_DLL_INIT_FAILED", "STATUS_DLL_NOT_FOUND"),
    *("STATUS_ACCESS_DENIED", "STATUS_INVALID_IMAGE_FORMAT"),
)
NUMBERS |= dict(zip(STATUSES, trial.MEANINGS, strict=True))

PACKAGES, LABELS = "SECURITY_APP_PACKAGE_AUTHORITY", "SECURITY_MANDATORY_LABEL_AUTHORITY"
NT, CAPABILITIES = "SECURITY_NT_AUTHORITY", "SECURITY_CAPABILITY_BASE_RID"
# Each SID starts with the values of these constants: an authority, and one or more relative identifiers.
SIDS = {
    capabilities.package_sid("any"): (PACKAGES, "SECURITY_APP_PACKAGE_BASE_RID"),
    capabilities.capability_sid("any"): (PACKAGES, CAPABILITIES, "SECURITY_CAPABILITY_APP_RID"),
    network_capabilities.INTERNET_CLIENT: (
        PACKAGES,
        CAPABILITIES,
        "SECURITY_CAPABILITY_INTERNET_CLIENT",
    ),
    network_capabilities.INTERNET_CLIENT_SERVER: (
        *(PACKAGES, CAPABILITIES),
        "SECURITY_CAPABILITY_INTERNET_CLIENT_SERVER",
    ),
    network_capabilities.PRIVATE_NETWORK: (
        *(PACKAGES, CAPABILITIES),
        "SECURITY_CAPABILITY_PRIVATE_NETWORK_CLIENT_SERVER",
    ),
    restricted_token.LOW: (LABELS, "SECURITY_MANDATORY_LOW_RID"),
    restricted_token.EVERYONE: ("SECURITY_WORLD_SID_AUTHORITY", "SECURITY_WORLD_RID"),
    restricted_token.ADMINISTRATORS: (
        *(NT, "SECURITY_BUILTIN_DOMAIN_RID"),
        "DOMAIN_ALIAS_RID_ADMINS",
    ),
    restricted_token.WRITE_RESTRICTED_CODE: (NT, "SECURITY_WRITE_RESTRICTED_CODE_RID"),
}
