//! Progress in the state of a checkpoint, which must match the checkpoint's name.

use anyhow::ensure;
use checkpoint::Restored;
use serde_json::Value;

use crate::failure::{Failure, Outcome};
use crate::step::Progress;
use record::ExitCode;

/// Largest count of anything: JSON numbers hold 53 bits, and a sum with what a run adds never
/// overflows.
const COUNT_MAX: u64 = 1 << 53;

/// Returns the progress of a restored state.
///
/// # Errors
/// Exit code 6, naming the checkpoint, if the state is of another step or not of this program.
pub(super) fn of_restored(restored: &Restored) -> Outcome<Progress> {
    parse(restored.state.clone(), restored.step).map_err(|error| {
        let name = &restored.checkpoint;
        Failure::new(ExitCode::Checkpoint, error).context(format!("state of checkpoint {name}"))
    })
}

fn parse(state: Value, step: u64) -> anyhow::Result<Progress> {
    let progress: Progress = serde_json::from_value(state)?;
    let Progress { step: found, next_sequence, tokens } = progress;
    ensure!(found == step, "expected step {step}, as the checkpoint is named, found {found}");
    for (field, count) in [("next_sequence", next_sequence), ("tokens", tokens)] {
        ensure!(count <= COUNT_MAX, "{field}: expected at most {COUNT_MAX}, found {count}");
    }
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(state: Value) -> String {
        parse(state, 10).unwrap_err().to_string()
    }

    #[test]
    fn a_state_is_that_of_the_checkpoints_step() {
        let state = |step: u64| json!({"step": step, "next_sequence": 60, "tokens": 1920});
        assert_eq!(parse(state(10), 10).unwrap().step, 10);
        for other in [0, 9, 11, u64::MAX] {
            let error = error(state(other));
            assert!(error.contains("step 10") && error.contains(&other.to_string()), "{error}");
        }
    }

    #[test]
    fn counts_at_the_end_of_their_range_are_refused() {
        for field in ["next_sequence", "tokens"] {
            let mut state = json!({"step": 10, "next_sequence": 60, "tokens": 1920});
            state[field] = u64::MAX.into();
            assert!(error(state).contains(field));
        }
    }
}
