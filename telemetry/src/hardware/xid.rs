//! Meanings of XID errors, in a few words (docs.nvidia.com/deploy/xid-errors).

/// Meanings of errors that concern the machine, or are frequent.
const MEANINGS: [(u32, &str); 22] = [
    (13, "graphics engine exception, mostly an error of the program"),
    (31, "memory page fault, mostly an error of the program"),
    (38, "driver firmware error"),
    (43, "the GPU stopped processing, mostly an error of the program"),
    (45, "preemptive clean-up after another error"),
    (48, "double-bit ECC error"),
    (61, "internal microcontroller breakpoint"),
    (62, "internal microcontroller halt"),
    (63, "ECC page retirement or row remapping"),
    (64, "ECC page retirement or row remapping failed"),
    (68, "video processor exception"),
    (69, "graphics engine class error"),
    (74, "NVLink error"),
    (79, "the GPU has fallen off the bus"),
    (92, "high rate of single-bit ECC errors"),
    (94, "contained ECC error"),
    (95, "uncontained ECC error"),
    (109, "context switch timeout"),
    (119, "GSP RPC timeout"),
    (120, "GSP error"),
    (140, "unrecovered ECC error"),
    (145, "NVLink RLW error"),
];

/// Number that NVML reports for an error that it does not know.
pub(super) const UNKNOWN: u32 = 999;

/// Describes an XID error, as in "XID 79 (the GPU has fallen off the bus)".
pub(super) fn name(xid: u32) -> String {
    if xid == UNKNOWN {
        return "an XID error of unknown number".to_owned();
    }
    match MEANINGS.iter().find(|(number, _)| *number == xid) {
        Some((_, meaning)) => format!("XID {xid} ({meaning})"),
        None => format!("XID {xid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_errors_are_explained() {
        assert!(MEANINGS.is_sorted_by_key(|(number, _)| *number));
        assert_eq!(name(79), "XID 79 (the GPU has fallen off the bus)");
        assert_eq!(name(7), "XID 7");
    }
}
