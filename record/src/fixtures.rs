//! A finished run, for tests of crates that read records.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::machine::Machine;
use crate::phase::ByPhase;
use crate::statistics::Distribution;
use crate::steps::file::StepFile;
use crate::*;

/// A finished run of 12 steps on two ranks that resumed once after step 6, with round numbers.
pub fn finished() -> Record {
    let ranks = [(0, "node-a"), (1, "node-b")].map(|(rank, host)| RankRecord {
        rank,
        host: host.to_owned(),
        node: None,
        pid: 100 + rank as u32,
        cores: Some(vec![rank]),
        threads: 1,
        unused_cores: 0,
        matmul_kernel: Some("avx512f".to_owned()),
        device: None,
        nic: None,
        numa: None,
        planned_bytes: 1 << 30,
        phases_ns: None,
        buckets: Vec::new(),
        times: None,
        sniffed: None,
        straggler: None,
        gpu: None,
    });
    let workload =
        WorkloadRecord { id: "0123456789ab".to_owned(), name: "smoke".to_owned(), config: smoke() };
    let machine = Machine {
        host: "node-a".to_owned(),
        operating_system: Some("Debian GNU/Linux 13 (trixie)".to_owned()),
        kernel: "6.12".to_owned(),
        architecture: "x86_64".to_owned(),
        cpu_model: None,
        cpu_threads: Some(2),
        cpu_cores: Some(2),
        memory_bytes: Some(8 << 30),
        instruction_sets: Vec::new(),
    };
    let environment = Environment {
        version: "0.1.0".to_owned(),
        commit: Some("1a2b3c4d5e6f".to_owned()),
        mpi_library: None,
        matmul_kernel: Some("avx512f".to_owned()),
        cuda: None,
        machine,
    };
    let attempts = vec![attempt(1, Status::Failed, 0, 8), attempt(2, Status::Complete, 6, 12)];
    let run = serde_json::json!({"run": {"engine": "fused"}});
    let mut record = Record::running(workload, run, environment, ranks.to_vec(), attempts);
    record.status = Status::Complete;
    record.exit_code = Some(0);
    let series = series();
    record.measure(&series, &reference(), Some(blake3::hash(b"weights")));
    record.collectives = Collectives::of(&series, "mpi", None, 1 << 20);
    let saved = [6, 12].map(|step| CheckpointSaved {
        tier: "nvme".to_owned(),
        step,
        bytes: 500_000_000,
        write_ns: 250_000_000,
        save_ns: 300_000_000,
        stall_ns: 20_000_000,
    });
    let saves = Saves { committed: saved.to_vec(), skipped: 1, ..Saves::default() };
    record.checkpoints = Checkpoints::of(&saves, vec![promoted()]);
    record.note_missing();
    record
}

/// Both saves were copied to the shared tier, the second one at the second try.
fn promoted() -> PromotedTo {
    PromotedTo {
        tier: "shared".to_owned(),
        count: 2,
        last_step: Some(12),
        bytes_per_second: Some(500e6),
        copy_ms: Distribution::of([500.0, 1500.0].into_iter()),
        failures: 1,
        last_error: Some("the server is busy".to_owned()),
        dropped: 0,
    }
}

/// The preset of this name, as a record has it.
fn smoke() -> serde_json::Value {
    serde_json::json!({
        "model": {
            "family": "gpt", "layers": 2, "width": 128, "heads": 4, "feed_forward": 512,
            "vocabulary": 256, "context": 128,
        },
        "data": {"source": "synthetic", "seed": 0, "evaluation_sequences": 64},
        "batch": {"micro_sequences": 4, "sequence_tokens": 128, "global_sequences": 16},
        "precision": {"compute": "f32"},
        "optimizer": {
            "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
            "gradient_norm_max": 1.0,
        },
        "schedule": {
            "steps": 200, "learning_rate": 3e-3, "learning_rate_min": 3e-4, "warmup_steps": 20,
            "decay": "cosine", "seed": 0,
        },
    })
}

fn attempt(number: u32, status: Status, resumed_after_step: u64, last_step: u64) -> Attempt {
    Attempt {
        number,
        status,
        exit_code: (status == Status::Complete).then_some(0),
        reason: None,
        world: 2,
        injected: Vec::new(),
        resumed_after_step: Some(resumed_after_step),
        recovery: (resumed_after_step > 0).then(|| Recovery {
            seconds: 0.25,
            sources: vec![RecoverySource {
                tier: "nvme".to_owned(),
                bytes: 500_000_000,
                from_peers_bytes: 250_000_000,
            }],
        }),
        committed_step: None,
        pods: (number == 1).then_some(PodTimes {
            queued_seconds: None,
            scheduled_seconds: Some(12.0),
            sandbox_seconds: Some(4.0),
            image_seconds: Some(82.0),
            ssh_ready_seconds: Some(2.0),
        }),
        start: Some(StartParts {
            launch: Some(LaunchParts { hosts_seconds: 1.5, mpirun_seconds: 0.5 }),
            bootstrap_seconds: 0.1,
            wire_up_seconds: 0.2,
            restore_seconds: 0.05,
            first_step_seconds: 0.1,
        }),
        repeated_seconds: if number == 2 { 0.2 } else { 0.0 },
        last_step,
        started_unix_ms: 10_000 * u64::from(number),
        ended_unix_ms: Some(10_000 * u64::from(number) + 2_000),
    }
}

pub(crate) fn reference() -> Reference {
    Reference {
        flops_per_token: Some(FlopsPerToken { causal: 3e6, full: 4e6 }),
        matmul_flops_per_second: Some(1e11),
        peak_flops_per_second: None,
        entropy_floor: Some(2.5),
    }
}

/// A record of a complete run that others can be compared with.
pub fn comparable() -> Record {
    let mut record = finished();
    record.steps.as_mut().unwrap().measured = MEASURED_STEPS_MIN;
    record
}

/// Steps of 100 ms; step 10 also saves a checkpoint for 100 ms and step 12 evaluates for 200 ms.
pub fn series() -> StepSeries {
    of_samples(samples())
}

pub(crate) fn of_samples(samples: impl IntoIterator<Item = StepSample>) -> StepSeries {
    let mut series = StepSeries::new(2, None);
    samples.into_iter().for_each(|sample| series.push(&sample));
    series
}

pub(crate) fn samples() -> impl Iterator<Item = StepSample> {
    (1..=12_u64).map(|step| {
        let mut sample = sample(if step <= 6 { 1 } else { 2 }, step);
        sample.phases.checkpoint = if step == 10 { 100_000_000 } else { 0 };
        sample.phases.eval = if step == 12 { 200_000_000 } else { 0 };
        sample.wall_ns = sample.phases.wall_ns();
        sample
    })
}

/// A step of 100 ms whose losses fall slowly and have no short decimal form.
pub fn sample(attempt: u32, step: u64) -> StepSample {
    let phases = ByPhase {
        data: 1_000_000,
        forward: 30_000_000,
        backward: 55_000_000,
        comm_exposed: 4_000_000,
        optimizer: 9_000_000,
        checkpoint: 0,
        eval: 0,
        other: 1_000_000,
    };
    StepSample {
        attempt,
        step,
        loss: 5.0 + 1.0 / (step as f64 + 2.0),
        gradient_norm: 1.0 / 3.0,
        parameter_norm: step.is_multiple_of(2).then_some(60.0 + 1.0 / step as f64),
        update_ratio: step.is_multiple_of(2).then_some(1e-3 / step as f64),
        loss_z: (step > 2).then_some(0.7),
        learning_rate: 6e-4,
        tokens: 4096,
        evaluation_loss: None,
        phases,
        comm_total_ns: 12_000_000,
        comm_hidden_ns: 7_000_000,
        first_bucket_lead_ns: 20_000_000,
        comm_bytes: 1_000_000,
        wall_ns: phases.wall_ns(),
    }
}

/// Appends steps of an attempt to rank 0's file in a run's folder.
pub fn write_steps(dir: &Path, attempt: u32, steps: RangeInclusive<u64>) {
    fs::create_dir_all(dir.join("steps")).unwrap();
    let mut file = StepFile::open(dir, 0).unwrap();
    for step in steps {
        file.append(&StepLine::now(0, sample(attempt, step))).unwrap();
    }
}
