//! What helps where the memory plan of a rank does not fit: only what the run does not do yet.

use models::memory::{MemoryPlan, PACKED_WEIGHTS};

use crate::config::{Config, Engine};

/// What a run could do to need less memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remedies {
    /// `run.recompute` is off, and would drop what more than one block keeps.
    recompute: bool,
    /// `run.shard_optimizer` is off.
    shard: bool,
    /// There are several ranks, which can share the optimizer state.
    several_ranks: bool,
    /// Several of them are on each machine.
    fewer_ranks: bool,
}

impl Remedies {
    /// Of a run with so many ranks, of which `local` are on this machine.
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

    /// What is missing and what would help, where a rank may not use as much as it needs.
    pub(crate) fn sentence(&self, plan: &MemoryPlan, available_bytes: u64) -> Option<String> {
        let total = plan.total_bytes();
        if total <= available_bytes {
            return None;
        }
        let working = plan.working_bytes();
        // They decide whether a smaller micro-batch can help.
        let flat = total - working;
        let help = if flat < available_bytes {
            let choices = list(&self.for_working(plan));
            format!("{} are activations and workspace; {choices}", gib(working))
        } else {
            let unsharded = flat - plan.sharded_bytes();
            let choices = list(&self.for_flat(unsharded < available_bytes));
            format!("{} are weights, gradients and optimizer state; {choices}", gib(flat))
        };
        let (needed, found) = (gib(total), gib(available_bytes));
        Some(format!("one rank needs {needed}, {found} are available\n  hint: {help}"))
    }

    fn for_working(&self, plan: &MemoryPlan) -> Vec<&'static str> {
        let is_packed = plan.items.iter().any(|item| item.name == PACKED_WEIGHTS);
        let choices = [
            (self.recompute, "set run.recompute = true"),
            (is_packed, "set run.pack_weights = false"),
            (self.shard && self.several_ranks, SHARD),
            (true, "lower batch.micro_sequences or batch.sequence_tokens"),
            (self.fewer_ranks, FEWER_RANKS),
        ];
        offered(choices)
    }

    /// `enough_ranks_fit` where parts of what is sharded can be small enough.
    fn for_flat(&self, enough_ranks_fit: bool) -> Vec<&'static str> {
        let smaller_parts = match (self.shard, self.several_ranks) {
            (true, true) => SHARD,
            (true, false) => "set run.shard_optimizer = true with more machines",
            (false, _) => "take more machines, so that each rank holds less optimizer state",
        };
        let choices = [
            (enough_ranks_fit, smaller_parts),
            (self.fewer_ranks, FEWER_RANKS),
            (true, "take a smaller model or a machine with more memory"),
        ];
        offered(choices)
    }
}

/// Frees optimizer state for whatever else is short.
const SHARD: &str = "set run.shard_optimizer = true";

/// What is available is divided among them.
const FEWER_RANKS: &str = "start fewer ranks per machine";

fn offered<const N: usize>(choices: [(bool, &'static str); N]) -> Vec<&'static str> {
    choices.into_iter().filter(|&(is_open, _)| is_open).map(|(_, text)| text).collect()
}

/// "a, b, or c".
fn list(choices: &[&str]) -> String {
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
    use models::workload::Compute;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// 4 GiB of flat buffers and 2 of another item.
    fn plan(item: &str) -> MemoryPlan {
        MemoryPlan::new(1 << 28, 1 << 28, 1 << 28, Compute::F32, [(item.to_owned(), 2 * GIB)])
    }

    fn remedies(settings: &[&str], world: usize, local: usize) -> Remedies {
        let settings: Vec<_> = settings.iter().map(|&setting| setting.to_owned()).collect();
        Remedies::new(&Config::load("smoke", &settings).unwrap(), world, local)
    }

    fn hint(remedies: Remedies, item: &str, available: u64) -> String {
        let sentence = remedies.sentence(&plan(item), available).unwrap();
        let (told, hint) = sentence.split_once("\n  hint: ").unwrap();
        let found = gib(available);
        assert_eq!(told, format!("one rank needs 6.00 GiB, {found} are available"));
        hint.to_owned()
    }

    #[test]
    fn what_fits_needs_no_hint() {
        let all = remedies(&[], 2, 2);
        assert_eq!(all.sentence(&plan("activations"), 6 * GIB), None);
        assert!(all.sentence(&plan("activations"), 6 * GIB - 1).is_some());
    }

    #[test]
    fn too_many_activations_are_recomputed_or_made_fewer() {
        let of = |settings: &[&str], local, item| hint(remedies(settings, 2, local), item, 5 * GIB);
        assert_eq!(
            of(&[], 2, PACKED_WEIGHTS),
            "2.00 GiB are activations and workspace; set run.recompute = true, \
             set run.pack_weights = false, set run.shard_optimizer = true, \
             lower batch.micro_sequences or batch.sequence_tokens, \
             or start fewer ranks per machine"
        );
        let least = "2.00 GiB are activations and workspace; \
                     lower batch.micro_sequences or batch.sequence_tokens";
        for setting in ["run.recompute=true", "run.engine=candle", "model.layers=1"] {
            let settings = [setting, "run.shard_optimizer=true"];
            assert_eq!(of(&settings, 1, "activations"), least, "{setting}");
        }
    }

    #[test]
    fn too_much_state_is_sharded_or_spread() {
        let of = |settings: &[&str], (world, local), available| {
            hint(remedies(settings, world, local), "activations", available * GIB)
        };
        let sharded = ["run.shard_optimizer=true"];
        let more = "take more machines, so that each rank holds less optimizer state, ";
        let fewer = "start fewer ranks per machine, ";
        for (settings, ranks, available, expected) in [
            (&[][..], (1, 1), 3, "set run.shard_optimizer = true with more machines, ".to_owned()),
            (&[], (8, 1), 3, "set run.shard_optimizer = true, ".to_owned()),
            (&[], (8, 8), 3, format!("set run.shard_optimizer = true, {fewer}")),
            (&sharded, (8, 1), 3, more.to_owned()),
            (&sharded, (8, 8), 3, format!("{more}{fewer}")),
            // Weights and gradients alone do not fit.
            (&sharded, (8, 8), 2, fewer.to_owned()),
            (&sharded, (8, 1), 2, String::new()),
            (&[], (8, 1), 2, String::new()),
        ] {
            let expected = format!(
                "4.00 GiB are weights, gradients and optimizer state; {expected}{}take a smaller \
                 model or a machine with more memory",
                if expected.is_empty() { "" } else { "or " }
            );
            assert_eq!(of(settings, ranks, available), expected);
        }
    }
}
