//! Plans: a graph with the engine that computes it and the workspace that this needs.

use std::fmt;

use device::cuda::cudnn::{
    Attribute, Builder, Cudnn, Descriptor, Handle, HeuristicMode, Kind, Refusal,
};
use device::cuda::{ComputeCapability, Error, Libraries};

use super::engine::Engine;
use super::graph::Graphs;
use super::part::Part;
use crate::ops::attention::Shape;

/// Most engines that the heuristic returns.
const ENGINES_MAX: usize = 16;

/// Target of plans: library and device.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) cudnn: Cudnn,
    pub(super) capability: ComputeCapability,
    pub(super) device: TargetDevice,
}

/// A device.
#[derive(Debug)]
pub(super) enum TargetDevice {
    /// A present device: its plans can be executed.
    Present(Handle),
    /// Properties of an absent device.
    #[cfg_attr(not(test), expect(dead_code, reason = "the gate makes plans without a device"))]
    Described(Descriptor),
}

/// A plan that can be executed on the target's device.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) descriptor: Descriptor,
    /// Part of the attention that an execution computes.
    pub(super) part: Part,
}

/// Reason why there is no plan.
#[derive(Debug)]
enum Reason {
    Refused(Refusal),
    Workspace { bytes: usize, bytes_max: usize },
    NoEngine,
    NotDeterministic(ComputeCapability),
}

impl Target {
    /// The graph of an operation.
    pub(super) fn in_graph(
        &self,
        graph: Builder,
        operation: Descriptor,
    ) -> Result<Descriptor, Refusal> {
        let graph = graph.descriptors(Attribute::OPERATION_GRAPH_OPERATIONS, &[operation])?;
        match &self.device {
            TargetDevice::Present(handle) => {
                graph.handle(Attribute::OPERATION_GRAPH_HANDLE, handle)?.finalize()
            }
            TargetDevice::Described(_) => graph.finalize(),
        }
    }

    /// Adds the properties of an absent device to a descriptor of engines.
    fn with_properties(&self, builder: Builder, at: Attribute) -> Result<Builder, Refusal> {
        match &self.device {
            TargetDevice::Present(_) => Ok(builder),
            TargetDevice::Described(properties) => builder.descriptor(at, properties),
        }
    }

    /// A configuration becomes a plan.
    fn plan(&self, configuration: &Descriptor) -> Result<Descriptor, Refusal> {
        let plan = Builder::new(self.cudnn, Kind::EXECUTION_PLAN)?
            .descriptor(Attribute::EXECUTION_PLAN_ENGINE_CONFIGURATION, configuration)?;
        match &self.device {
            TargetDevice::Present(handle) => {
                plan.handle(Attribute::EXECUTION_PLAN_HANDLE, handle)?.finalize()
            }
            TargetDevice::Described(_) => {
                let at = Attribute::EXECUTION_PLAN_DEVICE_PROPERTIES;
                self.with_properties(plan, at)?.finalize()
            }
        }
    }

    /// Forward: the first engine by cuDNN's own order that needs no more workspace than this.
    pub(super) fn forward(&self, shape: &Shape, bytes_max: usize) -> Result<Plan, Error> {
        let part = Part::whole(shape);
        let planned = self.forward_of(Graphs { cudnn: self.cudnn, shape, part }, bytes_max);
        planned.map_err(|reason| no_plan("attention", shape, &reason))
    }

    fn forward_of(&self, graphs: Graphs<'_>, bytes_max: usize) -> Result<Plan, Reason> {
        let mut reason = Reason::NoEngine;
        for configuration in self.offered(&graphs.forward(self)?)? {
            match self.within(&configuration, graphs.part, bytes_max) {
                Ok(plan) => return Ok(plan),
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }

    /// Configurations of engines, best first.
    fn offered(&self, graph: &Descriptor) -> Result<Vec<Descriptor>, Refusal> {
        let heuristic = Builder::new(self.cudnn, Kind::ENGINE_HEURISTIC)?
            .descriptor(Attribute::ENGINE_HEURISTIC_GRAPH, graph)?
            .heuristic(Attribute::ENGINE_HEURISTIC_MODE, HeuristicMode::A)?;
        let at = Attribute::ENGINE_HEURISTIC_DEVICE_PROPERTIES;
        let results = Attribute::ENGINE_HEURISTIC_RESULTS;
        self.with_properties(heuristic, at)?.finalize()?.listed(
            results,
            Kind::ENGINE_CONFIGURATION,
            ENGINES_MAX,
        )
    }

    /// Backward, by the engine that is deterministic: the largest part that needs no more
    /// workspace than this.
    pub(super) fn backward(&self, shape: &Shape, bytes_max: usize) -> Result<Plan, Error> {
        let refuse = |reason| no_plan("the gradient of attention", shape, &reason);
        let engine = Engine::deterministic(self.capability);
        let engine = engine.ok_or_else(|| refuse(Reason::NotDeterministic(self.capability)))?;
        let mut reason = Reason::NoEngine;
        for part in Part::candidates(shape) {
            let graphs = Graphs { cudnn: self.cudnn, shape, part };
            match self.backward_of(graphs, engine, bytes_max) {
                Ok(plan) => return Ok(plan),
                Err(why) => reason = why,
            }
            // A smaller part helps against too large a workspace only.
            if !matches!(reason, Reason::Workspace { .. }) {
                break;
            }
        }
        Err(refuse(reason))
    }

    fn backward_of(
        &self,
        graphs: Graphs<'_>,
        engine: Engine,
        bytes_max: usize,
    ) -> Result<Plan, Reason> {
        let graph = graphs.backward(self)?;
        let configuration = self.configured(&graph, engine)?;
        self.within(&configuration, graphs.part, bytes_max)
    }

    /// An engine as it is set.
    fn configured(&self, graph: &Descriptor, engine: Engine) -> Result<Descriptor, Refusal> {
        let described = Builder::new(self.cudnn, Kind::ENGINE)?
            .descriptor(Attribute::ENGINE_OPERATION_GRAPH, graph)?
            .integers(Attribute::ENGINE_GLOBAL_INDEX, &[engine.index])?;
        let described = self.with_properties(described, Attribute::ENGINE_DEVICE_PROPERTIES)?;
        let knobs = engine.knobs().map(|(knob, value)| {
            Builder::new(self.cudnn, Kind::KNOB_CHOICE)?
                .knob(Attribute::KNOB_CHOICE_TYPE, knob)?
                .integers(Attribute::KNOB_CHOICE_VALUE, &[value])?
                .finalize()
        });
        let knobs = knobs.into_iter().collect::<Result<Vec<_>, _>>()?;
        Builder::new(self.cudnn, Kind::ENGINE_CONFIGURATION)?
            .descriptor(Attribute::ENGINE_CONFIGURATION_ENGINE, &described.finalize()?)?
            .descriptors(Attribute::ENGINE_CONFIGURATION_KNOB_CHOICES, &knobs)?
            .finalize()
    }

    /// The plan of a configuration, unless it needs more workspace than this.
    fn within(
        &self,
        configuration: &Descriptor,
        part: Part,
        bytes_max: usize,
    ) -> Result<Plan, Reason> {
        let descriptor = self.plan(configuration)?;
        let bytes = descriptor.integer(Attribute::EXECUTION_PLAN_WORKSPACE_BYTES)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > bytes_max {
            return Err(Reason::Workspace { bytes, bytes_max });
        }
        Ok(Plan { descriptor, part })
    }
}

/// cuDNN that refuses a graph as wrong rather than as unknown to it is our error.
fn no_plan(operation: &str, shape: &Shape, reason: &Reason) -> Error {
    let Shape { sequences, tokens, heads, key_value_heads, head_width } = shape;
    let what = format!(
        "{operation} with B = {sequences}, T = {tokens}, H = {heads}, K = {key_value_heads}, \
         D = {head_width}"
    );
    match reason {
        Reason::Refused(refusal) if !refusal.is_unsupported() => {
            refusal.clone().during(&format!("planning {what}"))
        }
        reason => {
            let version = Libraries::of_process().versions().cudnn;
            let library = format!("cuDNN {}", version.as_deref().unwrap_or("of unknown version"));
            let hint = "use run.attention = flash";
            Error::NoPlan { library, what, reason: reason.to_string(), hint }
        }
    }
}

impl From<Refusal> for Reason {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(formatter),
            Self::Workspace { bytes, bytes_max } => {
                write!(formatter, "expected a workspace of at most {bytes_max} bytes, not {bytes}")
            }
            Self::NoEngine => write!(formatter, "it offers no engine"),
            Self::NotDeterministic(capability) => {
                write!(
                    formatter,
                    "no deterministic one is known for compute capability {capability}"
                )
            }
        }
    }
}
