//! Every attention of the presets has plans on Ampere, Hopper and Blackwell, within the workspace
//! that is planned for it, with a gradient that is added in a fixed order. Needs no GPU: NVIDIA's
//! cuDNN makes plans from the properties of a device.
//!
//! `make test-cudnn-plans` runs this. A test starts this executable again, so that the libraries of
//! the wheels and the stand-in for the driver are found.

mod devices;
mod libraries;

use std::process::Command;

use device::cuda::cudnn::{Attribute, Cudnn, Descriptor, Kind};
use device::cuda::{Error, Libraries};

use self::devices::{Architecture, DEVICES};
use super::plan::{Plan, Target};
use super::workspace_bytes;
use crate::ops::attention::Shape;
use crate::{Workload, presets};

/// Set in a process of this executable that makes plans.
const GATE: &str = "YARDSTICK_TEST_CUDNN_GATE";
/// Path of the test in the crate.
const PLANS: &str = "ops::attention::cuda::cudnn::plan_gate::plans_of_this_process";

/// Body of a process that finds the libraries; not a test by itself.
#[test]
fn plans_of_this_process() {
    if std::env::var_os(GATE).is_some() {
        plan_everything();
    }
}

#[test]
fn every_preset_has_plans_within_its_workspace() {
    let libraries = libraries::folders();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", PLANS, "--nocapture"]).env(GATE, "1");
    command.env("YARDSTICK_CUDA_PATH", &libraries.path).env("LD_LIBRARY_PATH", &libraries.path);
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    // Indented, so that it is not read as the result of this process.
    out.lines().for_each(|line| println!("    {line}"));
    assert!(output.status.success(), "{err}");
    assert!(out.contains("1 passed"), "the gate did not run");
}

fn plan_everything() {
    let cudnn = Cudnn::open().unwrap_or_else(|error| panic!("{error}"));
    println!("cuDNN {}", Libraries::of_process().versions().cudnn.unwrap());
    for device in &DEVICES {
        let target = device.target(cudnn);
        for (name, shape) in presets() {
            if shape.head_width.is_multiple_of(8) {
                check_plans(&target, device.architecture, name, &shape);
            } else {
                check_refusal(&target, &shape);
            }
        }
    }
}

/// The attention of every preset, at its micro-batch.
fn presets() -> Vec<(&'static str, Shape)> {
    presets::names().map(|name| (name, shape(&presets::load(name).unwrap()))).collect()
}

fn shape(workload: &Workload) -> Shape {
    let micro_batch = workload.batch.micro_batch();
    let model = &workload.model;
    Shape {
        sequences: micro_batch.sequences,
        tokens: micro_batch.tokens,
        heads: model.heads,
        key_value_heads: model.key_value_heads(),
        head_width: model.head_width(),
    }
}

fn check_plans(target: &Target, architecture: Architecture, name: &str, shape: &Shape) {
    let bytes_max = workspace_bytes(shape);
    let planned = |plan: Result<Plan, Error>| match plan {
        Ok(plan) => Described::of(&plan),
        Err(error) => panic!("{name} on {architecture:?}: {error}"),
    };
    let forward = planned(target.forward(shape, bytes_max));
    let backward = planned(target.backward(shape, bytes_max));
    for plan in [&forward, &backward] {
        assert!(plan.workspace_bytes <= bytes_max as i64, "{name} on {architecture:?}: {plan:?}");
    }
    println!("{architecture:?} {name}: at most {bytes_max} bytes");
    println!("    forward {forward:?}");
    println!("    backward {backward:?}");
    let (engine, stages) = architecture.deterministic();
    assert_eq!(backward.engine, engine, "{name} on {architecture:?}");
    assert_eq!(backward.knob(STAGES), Some(stages), "{name} on {architecture:?}");
}

/// cuDNN takes heads of multiples of 8 only.
fn check_refusal(target: &Target, shape: &Shape) {
    let error = target.forward(shape, workspace_bytes(shape)).unwrap_err();
    assert!(matches!(error, Error::NoPlan { .. }) && error.is_of_machine(), "{error}");
    let error = target.backward(shape, workspace_bytes(shape)).unwrap_err();
    assert!(matches!(error, Error::NoPlan { .. }), "{error}");
    let said = error.to_string();
    let parts = ["D = 20", "use run.attention = flash"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

/// `CUDNN_KNOB_TYPE_STAGES`.
const STAGES: i64 = 14;

/// cuDNN's description of a plan.
#[derive(Debug)]
#[expect(dead_code, reason = "what is only printed")]
struct Described {
    engine: i64,
    /// Type and value of each.
    knobs: Vec<(i64, i64)>,
    workspace_bytes: i64,
    /// Sequences and key heads of an execution.
    part: (usize, usize),
}

impl Described {
    fn of(plan: &Plan) -> Self {
        let descriptor = &plan.descriptor;
        let at = Attribute::EXECUTION_PLAN_ENGINE_CONFIGURATION;
        let configuration = only(descriptor, at, Kind::ENGINE_CONFIGURATION);
        let engine = only(&configuration, Attribute::ENGINE_CONFIGURATION_ENGINE, Kind::ENGINE);
        let at = Attribute::ENGINE_CONFIGURATION_KNOB_CHOICES;
        let choices = configuration.listed(at, Kind::KNOB_CHOICE, 32).unwrap();
        let integer = |of: &Descriptor, at| of.integer(at).unwrap();
        let knob = |choice: &Descriptor| {
            let knob = choice.knob(Attribute::KNOB_CHOICE_TYPE).unwrap();
            (knob, integer(choice, Attribute::KNOB_CHOICE_VALUE))
        };
        Self {
            engine: integer(&engine, Attribute::ENGINE_GLOBAL_INDEX),
            knobs: choices.iter().map(knob).collect(),
            workspace_bytes: integer(descriptor, Attribute::EXECUTION_PLAN_WORKSPACE_BYTES),
            part: (plan.part.sequences, plan.part.key_value_heads),
        }
    }

    fn knob(&self, wanted: i64) -> Option<i64> {
        self.knobs.iter().find(|(knob, _)| *knob == wanted).map(|(_, value)| *value)
    }
}

/// The one descriptor that an attribute refers to.
fn only(of: &Descriptor, at: Attribute, kind: Kind) -> Descriptor {
    of.listed(at, kind, 1).unwrap().remove(0)
}
