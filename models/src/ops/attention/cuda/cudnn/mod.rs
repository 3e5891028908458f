//! Attention by cuDNN, in bf16: a plan for forward and one for backward, made once.
//!
//! `graph.rs` defines the computation, `engine.rs` chooses the engine of the gradient, `plan.rs`
//! makes plans of both within a workspace of the size that `workspace.rs` computes, and `part.rs`
//! divides an attention whose gradient needs more.
#![allow(unsafe_code)] // executes plans

mod engine;
mod graph;
mod part;
mod plan;
#[cfg(test)]
mod plan_gate;
mod workspace;

use device::cuda::cudnn::{Binding, Handle};
use device::cuda::{Cuda, Error};
use device::{DeviceBuffer, View, ViewMut};

use self::graph::unique_id;
use self::part::Start;
use self::plan::{Plan, Target, TargetDevice};
use super::{Forward, scale};
use crate::ops::attention::Shape;
use crate::ops::kernels::{CudaElement, Format};
pub(crate) use workspace::workspace_bytes;

/// The plans of one shape.
#[derive(Debug)]
pub(crate) struct Cudnn {
    forward: Plan,
    backward: Plan,
    handle: Handle,
    workspace: DeviceBuffer<u8>,
    shape: Shape,
    /// Read from the host: 1 / sqrt(D), and the score of a key after the query.
    scale: f32,
    masked_score: f32,
}

/// Addresses of tensors by their unique ids, at most so many.
const TENSORS_MAX: usize = 11;

/// Addresses of a part's tensors.
#[derive(Debug, Default)]
struct Tensors {
    unique_ids: [i64; TENSORS_MAX],
    addresses: [u64; TENSORS_MAX],
    count: usize,
}

impl Tensors {
    fn with(mut self, unique_id: i64, address: u64) -> Self {
        self.unique_ids[self.count] = unique_id;
        self.addresses[self.count] = address;
        self.count += 1;
        self
    }

    fn binding(&self, workspace: u64) -> Binding<'_> {
        let unique_ids = &self.unique_ids[..self.count];
        Binding { unique_ids, addresses: &self.addresses[..self.count], workspace }
    }
}

impl Cudnn {
    /// Plans both passes within a workspace, which should have [`workspace_bytes`] bytes.
    ///
    /// # Errors
    /// Fails if cuDNN is missing, or has no plan for this shape and device.
    pub(crate) fn new(
        device: &Cuda,
        shape: Shape,
        workspace: DeviceBuffer<u8>,
    ) -> Result<Self, Error> {
        let cudnn = device::cuda::cudnn::Cudnn::open()?;
        let handle = Handle::new(cudnn, device)?;
        let capability = device.properties().compute_capability;
        let target = Target { cudnn, capability, device: TargetDevice::Present(handle.clone()) };
        Ok(Self {
            forward: target.forward(&shape, workspace.len())?,
            backward: target.backward(&shape, workspace.len())?,
            handle,
            workspace,
            shape,
            scale: scale(&shape) as f32,
            masked_score: f32::NEG_INFINITY,
        })
    }

    /// Writes `output` and `log_sums`, whose lengths the caller checked.
    pub(super) fn forward<E: CudaElement>(
        &mut self,
        output: ViewMut<'_, E>,
        log_sums: ViewMut<'_, f32>,
        qkv: View<'_, E>,
        shape: Shape,
    ) -> Result<(), Error> {
        self.check::<E>(shape);
        for start in self.forward.part.starts(shape) {
            let tensors = self
                .numbers()
                .with(unique_id::QUERY, at(qkv, start.query))
                .with(unique_id::KEY, at(qkv, start.key))
                .with(unique_id::VALUE, at(qkv, start.value))
                .with(unique_id::OUTPUT, at(output.as_view(), start.output))
                .with(unique_id::STATS, at(log_sums.as_view(), start.stats));
            let workspace = self.workspace.view_mut().cuda_address();
            // SAFETY: the tensors are those of the graph, whose lengths the caller checked; what is
            // written is borrowed exclusively; the workspace is used in the order of the stream.
            unsafe { self.handle.execute(&self.forward.descriptor, tensors.binding(workspace)) }?;
        }
        Ok(())
    }

    /// Writes `dqkv`; the caller checked all lengths.
    pub(super) fn backward<E: CudaElement>(
        &mut self,
        dqkv: ViewMut<'_, E>,
        doutput: View<'_, E>,
        qkv: View<'_, E>,
        forward: Forward<'_, E>,
        shape: Shape,
    ) -> Result<(), Error> {
        self.check::<E>(shape);
        for start in self.backward.part.starts(shape) {
            let tensors = self.read_by_backward(doutput, qkv, forward, start);
            let dqkv = dqkv.as_view();
            let tensors = tensors
                .with(unique_id::DQUERY, at(dqkv, start.query))
                .with(unique_id::DKEY, at(dqkv, start.key))
                .with(unique_id::DVALUE, at(dqkv, start.value));
            let workspace = self.workspace.view_mut().cuda_address();
            // SAFETY: as in forward; parts write different columns or rows.
            unsafe { self.handle.execute(&self.backward.descriptor, tensors.binding(workspace)) }?;
        }
        Ok(())
    }

    fn read_by_backward<E: CudaElement>(
        &self,
        doutput: View<'_, E>,
        qkv: View<'_, E>,
        forward: Forward<'_, E>,
        start: Start,
    ) -> Tensors {
        self.numbers()
            .with(unique_id::QUERY, at(qkv, start.query))
            .with(unique_id::KEY, at(qkv, start.key))
            .with(unique_id::VALUE, at(qkv, start.value))
            .with(unique_id::OUTPUT, at(forward.output, start.output))
            .with(unique_id::DOUTPUT, at(doutput, start.output))
            .with(unique_id::STATS, at(forward.log_sums, start.stats))
    }

    /// Numbers that are read from the host.
    fn numbers(&self) -> Tensors {
        let address = |number: &f32| std::ptr::from_ref(number).expose_provenance() as u64;
        Tensors::default()
            .with(unique_id::SCALE, address(&self.scale))
            .with(unique_id::MASKED_SCORE, address(&self.masked_score))
    }

    fn check<E: CudaElement>(&self, shape: Shape) {
        assert_eq!(shape, self.shape, "the shape that was planned");
        assert_eq!(E::FORMAT, Format::Bf16, "the format that was planned");
    }
}

/// The address of an element.
fn at<E: device::Element>(tensor: View<'_, E>, element: usize) -> u64 {
    tensor.cuda_address() + (element * size_of::<E>()) as u64
}
