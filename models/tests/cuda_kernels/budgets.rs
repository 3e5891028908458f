//! Table of the resources that each kernel may use.

use crate::ptxas::Usage;

/// Resources that a kernel may use. None may spill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    kernel: &'static str,
    /// Registers of a thread. A multiprocessor has 65,536 and, at most, 2,048 threads.
    pub(crate) registers: u32,
    /// Static shared memory of a block; 49,152 is the most without asking for more.
    pub(crate) shared_bytes: u32,
    /// Arrays of a thread in local memory.
    pub(crate) stack_bytes: u32,
}

const fn budget(kernel: &'static str, registers: u32, shared_bytes: u32) -> Budget {
    Budget { kernel, registers, shared_bytes, stack_bytes: 0 }
}

/// Registers leave room for 1,024 threads of a multiprocessor with 64, for 512 with 128, and for
/// 256 with 255, the most that a thread can have.
const BUDGETS: [Budget; 34] = [
    budget("add_bias", 48, 0),
    budget("adamw", 64, 0),
    budget("narrow", 48, 0),
    // A warp computes a row, and keeps its part of it in registers.
    budget("attention_forward", 128, 8192),
    budget("attention_delta", 128, 0),
    budget("attention_backward_queries", 128, 8192),
    budget("attention_backward_keys", 128, 8192),
    // Tiles of the tensor cores are in registers; one or two blocks of 128 threads are enough.
    budget("flash_forward", 255, 0),
    budget("flash_backward_queries", 255, 0),
    budget("flash_backward_keys", 255, 0),
    // One block of 256 threads; two of forward with heads of 64, which its launch bounds ensure.
    budget("wgmma_forward", 255, 0),
    budget("wgmma_backward_queries", 255, 0),
    budget("wgmma_backward_keys", 255, 0),
    // Blocks of up to 1,024 threads do not start with more than 64.
    budget("cross_entropy", 64, 256),
    budget("loss_sum", 64, 128),
    budget("embedding_forward", 48, 0),
    budget("embedding_backward_tokens", 64, 8192),
    budget("embedding_backward_positions", 64, 0),
    budget("gelu", 48, 0),
    budget("gelu_backward", 48, 0),
    budget("sums_partials", 64, 128),
    budget("add_partials", 64, 128),
    budget("first_non_finite", 32, 0),
    budget("add_gradients", 48, 0),
    // Partial sums of weights and biases for eight columns are in registers.
    budget("layer_norm_forward", 64, 0),
    budget("layer_norm_backward", 128, 512),
    budget("rms_norm_forward", 64, 0),
    budget("rms_norm_backward", 128, 256),
    budget("rotate", 64, 0),
    budget("column_partials", 64, 8192),
    budget("column_sums", 48, 2048),
    budget("swiglu_forward", 64, 0),
    budget("swiglu_backward", 64, 0),
    budget("update_partials", 64, 128),
];

/// Budget of a kernel, if it has one.
pub(crate) fn of(kernel: &str) -> Option<Budget> {
    BUDGETS.iter().find(|budget| budget.kernel == kernel).copied()
}

/// Lines of the table for kernels that do not exist.
pub(crate) fn unused<'a>(kernels: impl Iterator<Item = &'a str>) -> Vec<String> {
    let kernels: Vec<_> = kernels.collect();
    let unused = BUDGETS.iter().filter(|budget| !kernels.contains(&budget.kernel));
    unused
        .map(|budget| format!("there is no kernel {}: remove its budget", budget.kernel))
        .collect()
}

impl Budget {
    /// Description of the resources that exceed it.
    pub(crate) fn violation(&self, usage: &Usage) -> Option<String> {
        let limits = [
            ("registers", usage.registers, self.registers),
            ("bytes of static shared memory", usage.shared_bytes, self.shared_bytes),
            ("bytes of stack", usage.stack_bytes, self.stack_bytes),
            ("bytes of spills", usage.spilled_bytes, 0),
        ];
        let exceeded: Vec<_> = limits
            .iter()
            .filter(|(_, used, limit)| used > limit)
            .map(|(what, used, limit)| format!("{used} {what}, at most {limit}"))
            .collect();
        (!exceeded.is_empty()).then(|| format!("{}: {}", self.kernel, exceeded.join(", ")))
    }
}

#[test]
fn every_resource_is_limited() {
    let budget = budget("k", 32, 128);
    let within = Usage {
        kernel: "k".to_owned(),
        registers: 32,
        shared_bytes: 128,
        stack_bytes: 0,
        spilled_bytes: 0,
    };
    assert_eq!(budget.violation(&within), None);
    for usage in [
        Usage { registers: 33, ..within.clone() },
        Usage { shared_bytes: 129, ..within.clone() },
        Usage { stack_bytes: 8, ..within.clone() },
        Usage { spilled_bytes: 4, ..within.clone() },
    ] {
        assert!(budget.violation(&usage).is_some(), "{usage:?}");
    }
}
