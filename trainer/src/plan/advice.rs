//! Suggests settings that reduce memory where a run does not fit: only those that it does not use
//! yet.

use models::memory::{MemoryPlan, SHARDED};

use crate::config::{Config, Engine};

/// Ways in which a run could use less memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Advice {
    /// `run.recompute` is off, and there is more than one block whose activations it would drop.
    recompute: bool,
    /// `run.shard_optimizer` is off.
    shard: bool,
    /// There are several ranks, which could divide the optimizer state.
    several_ranks: bool,
    /// There are several ranks on this machine.
    fewer_ranks: bool,
}

impl Advice {
    /// For a run of `world` ranks, of which `local` are on this machine.
    pub(crate) fn new(config: &Config, world: usize, local: usize) -> Self {
        let run = &config.settings.run;
        Self {
            recompute: run.engine == Engine::Fused
                && !run.recompute
                && config.workload.model.layers > 1,
            shard: !run.shard_optimizer,
            several_ranks: world > 1,
            fewer_ranks: local > 1,
        }
    }

    /// An error message with a hint, if a rank needs more memory than is available to it.
    pub(crate) fn error(&self, plan: &MemoryPlan, available_bytes: u64) -> Option<String> {
        let total = plan.total_bytes();
        if total <= available_bytes {
            return None;
        }
        let working = plan.working_bytes();
        // If these alone do not fit, a smaller micro-batch does not help.
        let flat = total - working;
        let help = if flat < available_bytes {
            let choices = join(&self.ways_to_reduce_working_memory());
            format!("{} are activations and workspace; {choices}", gib(working))
        } else {
            let unsharded = flat - plan.bytes_of(&SHARDED);
            let choices = join(&self.ways_to_reduce_flat_buffers(unsharded < available_bytes));
            format!("{} are weights, gradients and optimizer state; {choices}", gib(flat))
        };
        let needed = gib(total);
        let available = gib(available_bytes);
        Some(format!("one rank needs {needed}, {available} are available\n  hint: {help}"))
    }

    fn ways_to_reduce_working_memory(&self) -> Vec<&'static str> {
        applicable([
            (self.recompute, "set run.recompute = true"),
            (self.shard && self.several_ranks, SHARD),
            (true, "lower batch.micro_sequences or batch.sequence_tokens"),
            (self.fewer_ranks, FEWER_RANKS),
        ])
    }

    /// `can_shard_enough`: with enough ranks, what is not sharded fits.
    fn ways_to_reduce_flat_buffers(&self, can_shard_enough: bool) -> Vec<&'static str> {
        let smaller_shards = match (self.shard, self.several_ranks) {
            (true, true) => SHARD,
            (true, false) => "set run.shard_optimizer = true with more machines",
            (false, _) => "use more machines, so that each rank holds less optimizer state",
        };
        applicable([
            (can_shard_enough, smaller_shards),
            (self.fewer_ranks, FEWER_RANKS),
            (true, "use a smaller model or a machine with more memory"),
        ])
    }
}

const SHARD: &str = "set run.shard_optimizer = true";

/// The memory of a machine is divided among its ranks.
const FEWER_RANKS: &str = "start fewer ranks per machine";

fn applicable<const N: usize>(choices: [(bool, &'static str); N]) -> Vec<&'static str> {
    choices.into_iter().filter(|&(applies, _)| applies).map(|(_, text)| text).collect()
}

/// "a, b, or c".
fn join(choices: &[&str]) -> String {
    match choices {
        [all @ .., last] if !all.is_empty() => format!("{}, or {last}", all.join(", ")),
        _ => choices.concat(),
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use device::Allocator;
    use models::memory;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// 4 GiB of flat buffers and 2 of another item.
    fn plan(item: &'static str) -> MemoryPlan {
        let allocator = Allocator::counting();
        let moments = [memory::FIRST_MOMENT, memory::SECOND_MOMENT];
        for purpose in [memory::WEIGHTS, memory::GRADIENTS].into_iter().chain(moments) {
            allocator.for_purpose(purpose).record(GIB);
        }
        allocator.for_purpose(item).record(2 * GIB);
        MemoryPlan::from(&allocator)
    }

    fn advice(settings: &[&str], world: usize, local: usize) -> Advice {
        let settings: Vec<_> = settings.iter().map(|&setting| setting.to_owned()).collect();
        Advice::new(&Config::load("smoke", &settings).unwrap(), world, local)
    }

    fn hint(advice: Advice, item: &'static str, available: u64) -> String {
        let message = advice.error(&plan(item), available).unwrap();
        let (error, hint) = message.split_once("\n  hint: ").unwrap();
        let found = gib(available);
        assert_eq!(error, format!("one rank needs 6.00 GiB, {found} are available"));
        hint.to_owned()
    }

    #[test]
    fn a_plan_that_fits_is_no_error() {
        let all = advice(&[], 2, 2);
        assert_eq!(all.error(&plan("activations"), 6 * GIB), None);
        assert!(all.error(&plan("activations"), 6 * GIB - 1).is_some());
    }

    #[test]
    fn hints_for_activations_reduce_activations() {
        assert_eq!(
            hint(advice(&[], 2, 2), "activations", 5 * GIB),
            "2.00 GiB are activations and workspace; set run.recompute = true, \
             set run.shard_optimizer = true, \
             lower batch.micro_sequences or batch.sequence_tokens, \
             or start fewer ranks per machine"
        );
        let least = "2.00 GiB are activations and workspace; \
                     lower batch.micro_sequences or batch.sequence_tokens";
        for setting in ["run.recompute=true", "run.engine=candle", "model.layers=1"] {
            let settings = [setting, "run.shard_optimizer=true"];
            let found = hint(advice(&settings, 2, 1), "activations", 5 * GIB);
            assert_eq!(found, least, "{setting}");
        }
    }

    /// A run, the memory available to a rank, and the hint without its last choice.
    struct Case<'a> {
        settings: &'a [&'a str],
        world: usize,
        local: usize,
        gib: u64,
        hint: String,
    }

    #[test]
    fn hints_for_flat_buffers_shard_or_distribute_them() {
        let sharded = ["run.shard_optimizer=true"];
        let more = "use more machines, so that each rank holds less optimizer state, ";
        let fewer = "start fewer ranks per machine, ";
        let shard = "set run.shard_optimizer = true, ";
        let alone = "set run.shard_optimizer = true with more machines, ";
        let cases = [
            Case { settings: &[], world: 1, local: 1, gib: 3, hint: alone.to_owned() },
            Case { settings: &[], world: 8, local: 1, gib: 3, hint: shard.to_owned() },
            Case { settings: &[], world: 8, local: 8, gib: 3, hint: format!("{shard}{fewer}") },
            Case { settings: &sharded, world: 8, local: 1, gib: 3, hint: more.to_owned() },
            Case { settings: &sharded, world: 8, local: 8, gib: 3, hint: format!("{more}{fewer}") },
            // Weights and gradients alone do not fit.
            Case { settings: &sharded, world: 8, local: 8, gib: 2, hint: fewer.to_owned() },
            Case { settings: &sharded, world: 8, local: 1, gib: 2, hint: String::new() },
            Case { settings: &[], world: 8, local: 1, gib: 2, hint: String::new() },
        ];
        for Case { settings, world, local, gib, hint: expected } in cases {
            let expected = format!(
                "4.00 GiB are weights, gradients and optimizer state; {expected}{}use a smaller \
                 model or a machine with more memory",
                if expected.is_empty() { "" } else { "or " }
            );
            let found = hint(advice(settings, world, local), "activations", gib * GIB);
            assert_eq!(found, expected);
        }
    }
}
