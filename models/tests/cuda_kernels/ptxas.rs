//! Resources of a kernel, as `--ptxas-options=-v` prints them.

/// The resources of one kernel on one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) kernel: String,
    /// Registers of one thread.
    pub(crate) registers: u32,
    /// Static shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// Local memory of a thread: arrays that are not in registers.
    pub(crate) stack_bytes: u32,
    /// Stored to and loaded from local memory because there were too few registers.
    pub(crate) spilled_bytes: u32,
}

/// Every kernel in the compiler's log.
pub(crate) fn usages(log: &str) -> Vec<Usage> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some(kernel) = between(line, "Compiling entry function '", "'") {
            usages.push(Usage::none_of(kernel));
            continue;
        }
        let Some(usage) = usages.last_mut() else {
            continue;
        };
        // Functions that were not inlined have lines of their own, which add up.
        let spills = [" bytes spill stores", " bytes spill loads"];
        usage.spilled_bytes += spills.iter().filter_map(|unit| before(line, unit)).sum::<u32>();
        usage.stack_bytes += before(line, " bytes stack frame").unwrap_or(0);
        usage.shared_bytes += before(line, " bytes smem").unwrap_or(0);
        usage.registers = usage.registers.max(before(line, " registers").unwrap_or(0));
    }
    usages
}

impl Usage {
    fn none_of(kernel: &str) -> Self {
        Self {
            kernel: kernel.to_owned(),
            registers: 0,
            shared_bytes: 0,
            stack_bytes: 0,
            spilled_bytes: 0,
        }
    }
}

impl Usage {
    /// The most of each resource.
    pub(crate) fn most(&self, other: &Self) -> Self {
        Self {
            kernel: self.kernel.clone(),
            registers: self.registers.max(other.registers),
            shared_bytes: self.shared_bytes.max(other.shared_bytes),
            stack_bytes: self.stack_bytes.max(other.stack_bytes),
            spilled_bytes: self.spilled_bytes.max(other.spilled_bytes),
        }
    }
}

/// The number in front of a unit.
fn before(line: &str, unit: &str) -> Option<u32> {
    let (front, _) = line.split_once(unit)?;
    front.rsplit([' ', ',']).next()?.parse().ok()
}

fn between<'a>(line: &'a str, start: &str, end: &str) -> Option<&'a str> {
    line.split_once(start)?.1.split_once(end).map(|(inside, _)| inside)
}

#[test]
fn the_log_of_two_kernels_is_read() {
    let log = "\
ptxas info    : 36 bytes gmem
ptxas info    : Compiling entry function 'backward' for 'sm_90a'
ptxas info    : Function properties for backward
ptxas         .     48 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 106 registers, used 1 barriers, 48 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 168.353 ms
ptxas info    : Compiling entry function 'forward' for 'sm_90a'
ptxas info    : Function properties for forward
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
";
    let backward = Usage {
        kernel: "backward".to_owned(),
        registers: 106,
        shared_bytes: 128,
        stack_bytes: 48,
        spilled_bytes: 32,
    };
    let forward = Usage { registers: 32, ..Usage::none_of("forward") };
    assert_eq!(usages(log), [backward, forward]);
}
