//! Expected goodput, by Monte Carlo: a run that saves on two tiers, fails, and resumes from the
//! newest checkpoint that survives.

use std::time::Duration;

use checkpoint::cadence::{expected_goodput, optimal_interval};

const HOUR: f64 = 3600.0;
/// Measured mean times between failures of jobs with so many GPUs (arXiv:2410.21680).
const WORLDS: [(usize, f64); 2] = [(1_024, 7.9 * HOUR), (16_384, 1.8 * HOUR)];
/// Assumed: share of failures that lose a node with its disk.
const NODE_LOSS: f64 = 0.25;
/// Assumed time from a failure until training resumes, without the restore.
const RESTART_SECONDS: f64 = 300.0;
/// Training time that is simulated.
const HORIZON_SECONDS: f64 = 20_000.0 * HOUR;

/// Cadence and costs of a run's saves.
struct Setup {
    name: &'static str,
    /// Time for which a save stops training.
    stall: f64,
    /// Seconds from the trigger until the checkpoint is on the nearest tier, and on the shared one.
    durable: f64,
    promoted: f64,
    /// `None`: by Young and Daly.
    interval: Option<f64>,
    has_node_tier: bool,
    restore: f64,
}

/// Assumed: 2 GiB per rank at 2 GB/s to a node's disk; minutes to a shared file system.
const SETUPS: [Setup; 4] = [
    Setup {
        name: "shared, stops training, every 30 min",
        stall: 120.0,
        durable: 0.0,
        promoted: 0.0,
        interval: Some(1800.0),
        has_node_tier: false,
        restore: 120.0,
    },
    Setup {
        name: "shared, stops training, Young/Daly",
        stall: 120.0,
        durable: 0.0,
        promoted: 0.0,
        interval: None,
        has_node_tier: false,
        restore: 120.0,
    },
    Setup {
        name: "shared, in the background, Young/Daly",
        stall: 0.5,
        durable: 120.0,
        promoted: 120.0,
        interval: None,
        has_node_tier: false,
        restore: 120.0,
    },
    Setup {
        name: "nvme, then shared, Young/Daly",
        stall: 0.5,
        durable: 2.0,
        promoted: 120.0,
        interval: None,
        has_node_tier: true,
        restore: 20.0,
    },
];

pub(crate) fn print() {
    println!("goodput after failures, of {:.0} h (seed 1)", HORIZON_SECONDS / HOUR);
    println!(
        "{:6} {:6} {:38} {:>9} {:>10} {:>8}",
        "GPUs", "MTBF", "cadence", "interval", "simulated", "Daly"
    );
    for (gpus, mean) in WORLDS {
        for setup in &SETUPS {
            let interval = setup.interval_seconds(mean);
            let daly = expected_goodput(
                Duration::from_secs_f64(interval),
                Duration::from_secs_f64(setup.stall),
                Duration::from_secs_f64(RESTART_SECONDS + setup.restore),
                Duration::from_secs_f64(mean),
            );
            let simulated = simulate(setup, interval, mean, &mut Random(1));
            println!(
                "{gpus:6} {:4.1} h {:38} {interval:7.0} s {:9.1}% {:7.1}%",
                mean / HOUR,
                setup.name,
                simulated * 100.0,
                daly * 100.0
            );
        }
    }
    println!("Daly's expression knows no time until a checkpoint is durable, and no lost disks.");
}

impl Setup {
    /// Returns the interval between saves, never shorter than a save takes until it is durable.
    fn interval_seconds(&self, mean: f64) -> f64 {
        let stall = Duration::from_secs_f64(self.stall);
        let optimal = || optimal_interval(stall, Duration::from_secs_f64(mean)).as_secs_f64();
        self.interval.unwrap_or_else(optimal).max(self.durable)
    }
}

/// Share of the time that became progress.
fn simulate(setup: &Setup, interval: f64, mean: f64, random: &mut Random) -> f64 {
    let mut elapsed = 0.0;
    let mut progress = 0.0; // of the newest checkpoint
    while elapsed < HORIZON_SECONDS {
        let until_failure = random.exponential(mean);
        let restart = RESTART_SECONDS + setup.restore;
        if until_failure < restart {
            elapsed += until_failure;
            continue;
        }
        let trained = until_failure - restart;
        let loses_disk = setup.has_node_tier && random.uniform() < NODE_LOSS;
        let delay = if loses_disk { setup.promoted } else { setup.durable };
        // Each period is an interval and a stall; a checkpoint counts from `delay` after its own.
        let period = interval + setup.stall;
        progress += ((trained - delay).max(0.0) / period).floor() * interval;
        elapsed += until_failure;
    }
    progress / elapsed
}

/// Numbers that are the same in every run (splitmix64).
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }
}
