//! The library's state for a device, and the execution of plans on its stream.
#![allow(unsafe_code)] // calls cuDNN with addresses

use std::ffi::c_void;
use std::sync::Arc;

use super::{Attribute, Builder, Cudnn, Descriptor, Kind, Refusal};
use crate::cuda::cudnn_functions::Pointer;
use crate::cuda::{Cuda, Error};

/// The library's state, bound to the compute stream of a device. A handle: clones are the same
/// state.
#[derive(Debug, Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pointer: Pointer,
    cudnn: Cudnn,
    device: Cuda,
}

// SAFETY: cuDNN's objects belong to no thread.
unsafe impl Send for Shared {}
// SAFETY: `execute` requires one thread at a time.
unsafe impl Sync for Shared {}

/// Addresses of a plan's tensors.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    /// The unique id of each tensor.
    pub unique_ids: &'a [i64],
    /// Address of each tensor: of the device, or of the host for a tensor that is passed by value.
    pub addresses: &'a [u64],
    /// The address of the workspace.
    pub workspace: u64,
}

impl Handle {
    /// Opens the library for a device.
    ///
    /// # Errors
    /// Fails if the library does not accept the device.
    pub fn new(cudnn: Cudnn, device: &Cuda) -> Result<Self, Error> {
        device.bind()?;
        Self::open(cudnn, device).map_err(Refusal::at_startup)
    }

    fn open(cudnn: Cudnn, device: &Cuda) -> Result<Self, Refusal> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        cudnn.check("cudnnCreate", unsafe { (cudnn.functions.cudnnCreate)(&raw mut pointer) })?;
        let shared = Shared { pointer, cudnn, device: device.clone() };
        let stream = device.compute().handle();
        // SAFETY: the device keeps its stream, and the handle keeps the device.
        let status = unsafe { (cudnn.functions.cudnnSetStream)(pointer, stream) };
        let handle = Self { shared: Arc::new(shared) };
        cudnn.check("cudnnSetStream", status)?;
        Ok(handle)
    }

    pub(super) fn pointer(&self) -> Pointer {
        self.shared.pointer
    }

    /// Starts a plan on the stream.
    ///
    /// # Safety
    /// The addresses are those of the plan's tensors, and the workspace is as large as the plan
    /// requires; on the device both stay so until the stream has reached the plan. A value of the
    /// host is read before this returns. Nothing that is written overlaps anything else. No other
    /// thread uses this handle meanwhile.
    ///
    /// # Errors
    /// Fails if the library refuses it.
    pub unsafe fn execute(&self, plan: &Descriptor, binding: Binding<'_>) -> Result<(), Error> {
        self.shared.device.bind()?;
        // SAFETY: as this function.
        let executed = unsafe { self.start(plan, binding) };
        executed.map_err(|refusal| refusal.during("starting a plan"))
    }

    unsafe fn start(&self, plan: &Descriptor, binding: Binding<'_>) -> Result<(), Refusal> {
        let Shared { pointer, cudnn, .. } = &*self.shared;
        let pack = variant_pack(*cudnn, binding)?;
        // SAFETY: as the callers.
        let status = unsafe {
            (cudnn.functions.cudnnBackendExecute)(*pointer, plan.pointer(), pack.pointer())
        };
        cudnn.check("cudnnBackendExecute", status)
    }
}

/// The addresses as the library takes them. It cannot be changed once it is finalized, so each
/// execution makes one.
fn variant_pack(cudnn: Cudnn, binding: Binding<'_>) -> Result<Descriptor, Refusal> {
    let Binding { unique_ids, addresses, workspace } = binding;
    let pointer = |&address: &u64| address as *mut c_void;
    let addresses: Vec<_> = addresses.iter().map(pointer).collect();
    Builder::new(cudnn, Kind::VARIANT_PACK)?
        .integers(Attribute::VARIANT_PACK_UNIQUE_IDS, unique_ids)?
        .addresses(Attribute::VARIANT_PACK_DATA_POINTERS, &addresses)?
        .addresses(Attribute::VARIANT_PACK_WORKSPACE, &[pointer(&workspace)])?
        .finalize()
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: this owns it.
            let _ = unsafe { (self.cudnn.functions.cudnnDestroy)(self.pointer) };
        }
    }
}
