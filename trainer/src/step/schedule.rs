//! Learning rate over steps.

use models::workload::{Decay, ScheduleConfig};

/// Returns the learning rate of a step (0-based).
///
/// Warm-up rises linearly and reaches the maximum at its last step; decay reaches the minimum at
/// the last step of the schedule.
pub(super) fn learning_rate(config: &ScheduleConfig, step: u64) -> f64 {
    let min = config.learning_rate_min;
    let max = config.learning_rate;
    if step < config.warmup_steps {
        return max * (step + 1) as f64 / config.warmup_steps as f64;
    }
    let last = config.steps.saturating_sub(1);
    let start = match config.decay {
        Decay::Cosine | Decay::Linear => config.warmup_steps,
        Decay::WarmupStableDecay => config.steps - config.decay_steps,
    };
    if step < start || last <= start {
        return max;
    }
    let progress = ((step - start) as f64 / (last - start) as f64).min(1.0);
    let share = match config.decay {
        Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        Decay::Linear | Decay::WarmupStableDecay => 1.0 - progress,
    };
    min + (max - min) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay, decay_steps: u64) -> ScheduleConfig {
        ScheduleConfig {
            steps: 100,
            learning_rate: 1.0,
            learning_rate_min: 0.1,
            warmup_steps: 10,
            decay,
            decay_steps,
            seed: 0,
        }
    }

    #[test]
    fn warms_up_to_the_maximum() {
        let config = schedule(Decay::Cosine, 0);
        assert_eq!(learning_rate(&config, 0), 0.1);
        assert_eq!(learning_rate(&config, 9), 1.0);
    }

    #[test]
    fn ends_at_the_minimum_and_never_rises() {
        for (decay, decay_steps) in
            [(Decay::Cosine, 0), (Decay::Linear, 0), (Decay::WarmupStableDecay, 20)]
        {
            let config = schedule(decay, decay_steps);
            let rates: Vec<f64> = (9..100).map(|step| learning_rate(&config, step)).collect();
            assert!(rates.is_sorted_by(|a, b| a >= b), "{decay:?}");
            assert!((rates[90] - 0.1).abs() < 1e-12, "{decay:?} ends at {}", rates[90]);
        }
    }

    #[test]
    fn shapes_differ_half_way() {
        assert!((learning_rate(&schedule(Decay::Linear, 0), 54) - 0.5551).abs() < 1e-3);
        assert!((learning_rate(&schedule(Decay::Cosine, 0), 54) - 0.5579).abs() < 1e-3);
        assert_eq!(learning_rate(&schedule(Decay::WarmupStableDecay, 20), 54), 1.0);
    }
}
