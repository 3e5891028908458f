//! Descriptors: created, given attributes, finalized, queried, and destroyed with their last owner.
#![allow(unsafe_code)] // calls cuDNN with pointers to attributes

use std::ffi::c_void;
use std::sync::Arc;

use super::numbers::ElementType;
use super::{
    Attribute, ComparisonMode, Cudnn, DataType, Handle, HeuristicMode, Kind, Knob, Refusal,
};
use crate::cuda::cudnn_functions::Pointer;

/// A descriptor that is being given attributes.
#[derive(Debug)]
pub struct Builder {
    owned: Owned,
    /// Descriptors that attributes refer to.
    uses: Vec<Descriptor>,
    handle: Option<Handle>,
}

/// A finalized descriptor. A handle: clones are the same descriptor.
#[derive(Debug, Clone)]
pub struct Descriptor {
    shared: Arc<Finalized>,
}

#[derive(Debug)]
struct Finalized {
    owned: Owned,
    _uses: Vec<Descriptor>,
    _handle: Option<Handle>,
}

/// The library's object.
#[derive(Debug)]
struct Owned {
    pointer: Pointer,
    cudnn: Cudnn,
}

// SAFETY: cuDNN's objects belong to no thread.
unsafe impl Send for Owned {}
// SAFETY: a finalized descriptor is only read, which threads may do at a time.
unsafe impl Sync for Owned {}

impl Owned {
    fn new(cudnn: Cudnn, kind: Kind) -> Result<Self, Refusal> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        let status =
            unsafe { (cudnn.functions.cudnnBackendCreateDescriptor)(kind.0, &raw mut pointer) };
        cudnn.check("making a descriptor", status)?;
        Ok(Self { pointer, cudnn })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: this owns it, and nothing that refers to it is left.
        let _ = unsafe { (self.cudnn.functions.cudnnBackendDestroyDescriptor)(self.pointer) };
    }
}

impl Builder {
    /// A descriptor without attributes.
    ///
    /// # Errors
    /// Fails if the library does not know this kind.
    pub fn new(cudnn: Cudnn, kind: Kind) -> Result<Self, Refusal> {
        Ok(Self { owned: Owned::new(cudnn, kind)?, uses: Vec::new(), handle: None })
    }

    /// Sets whole numbers.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn integers(self, attribute: Attribute, values: &[i64]) -> Result<Self, Refusal> {
        self.set(attribute, ElementType::INT64, values)
    }

    /// Sets a flag.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn flag(self, attribute: Attribute, value: bool) -> Result<Self, Refusal> {
        self.set(attribute, ElementType::BOOLEAN, &[value])
    }

    /// Sets a text.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn text(self, attribute: Attribute, text: &str) -> Result<Self, Refusal> {
        let with_zero = [text.as_bytes(), &[0]].concat();
        self.set(attribute, ElementType::CHAR, &with_zero)
    }

    /// Sets the type of elements.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn data_type(self, attribute: Attribute, value: DataType) -> Result<Self, Refusal> {
        self.set(attribute, ElementType::DATA_TYPE, &[value.0])
    }

    /// Sets the comparison of a mask.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn comparison(self, attribute: Attribute, value: ComparisonMode) -> Result<Self, Refusal> {
        self.set(attribute, ElementType::COMPARISON_MODE, &[value.0])
    }

    /// Sets the order of engines.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn heuristic(self, attribute: Attribute, value: HeuristicMode) -> Result<Self, Refusal> {
        self.set(attribute, ElementType::HEURISTIC_MODE, &[value.0])
    }

    /// Sets the type of a knob.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn knob(self, attribute: Attribute, value: Knob) -> Result<Self, Refusal> {
        self.set(attribute, ElementType::KNOB_TYPE, &[value.0])
    }

    /// Refers to a library's handle, and keeps it.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn handle(mut self, attribute: Attribute, handle: &Handle) -> Result<Self, Refusal> {
        self.handle = Some(handle.clone());
        self.set(attribute, ElementType::HANDLE, &[handle.pointer()])
    }

    /// Refers to another descriptor, and keeps it.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn descriptor(self, attribute: Attribute, used: &Descriptor) -> Result<Self, Refusal> {
        self.descriptors(attribute, std::slice::from_ref(used))
    }

    /// Refers to other descriptors, and keeps them.
    ///
    /// # Errors
    /// Fails if the attribute takes another type.
    pub fn descriptors(
        mut self,
        attribute: Attribute,
        used: &[Descriptor],
    ) -> Result<Self, Refusal> {
        let pointers: Vec<Pointer> = used.iter().map(Descriptor::pointer).collect();
        self.uses.extend_from_slice(used);
        self.set(attribute, ElementType::DESCRIPTOR, &pointers)
    }

    /// Sets addresses, which are not read before a plan is executed.
    pub(super) fn addresses(
        self,
        attribute: Attribute,
        values: &[*mut c_void],
    ) -> Result<Self, Refusal> {
        self.set(attribute, ElementType::VOID_POINTER, values)
    }

    /// The library checks that the attribute takes this type.
    fn set<T>(
        self,
        attribute: Attribute,
        element: ElementType,
        values: &[T],
    ) -> Result<Self, Refusal> {
        let Owned { pointer, cudnn } = &self.owned;
        let count = values.len() as i64;
        // SAFETY: the callers pass the type that belongs to `element`; the library copies them.
        let status = unsafe {
            let values = values.as_ptr().cast();
            (cudnn.functions.cudnnBackendSetAttribute)(
                *pointer,
                attribute.0,
                element.0,
                count,
                values,
            )
        };
        cudnn.check("setting an attribute", status)?;
        Ok(self)
    }

    /// Lets the library check the descriptor, which is constant from here on.
    ///
    /// # Errors
    /// Fails if attributes are missing, contradict each other, or cannot be computed.
    pub fn finalize(self) -> Result<Descriptor, Refusal> {
        let Self { owned, uses, handle } = self;
        // SAFETY: this owns it.
        let status = unsafe { (owned.cudnn.functions.cudnnBackendFinalize)(owned.pointer) };
        owned.cudnn.check("finalizing a descriptor", status)?;
        Ok(Descriptor { shared: Arc::new(Finalized { owned, _uses: uses, _handle: handle }) })
    }
}

impl Descriptor {
    pub(super) fn pointer(&self) -> Pointer {
        self.shared.owned.pointer
    }

    /// One whole number.
    ///
    /// # Errors
    /// Fails if the attribute has another type.
    pub fn integer(&self, attribute: Attribute) -> Result<i64, Refusal> {
        let mut value = 0_i64;
        // SAFETY: there is room for one number.
        unsafe { self.get(attribute, ElementType::INT64, 1, (&raw mut value).cast()) }?;
        Ok(value)
    }

    /// The number of a knob's type.
    ///
    /// # Errors
    /// Fails if the attribute has another type.
    pub fn knob(&self, attribute: Attribute) -> Result<i64, Refusal> {
        let mut value = 0_i32;
        // SAFETY: there is room for one number of this type.
        unsafe { self.get(attribute, ElementType::KNOB_TYPE, 1, (&raw mut value).cast()) }?;
        Ok(value.into())
    }

    /// The descriptors of a kind that an attribute lists: the first `count_max` of them.
    ///
    /// # Errors
    /// Fails if the attribute has another type.
    pub fn listed(
        &self,
        attribute: Attribute,
        kind: Kind,
        count_max: usize,
    ) -> Result<Vec<Self>, Refusal> {
        let cudnn = self.shared.owned.cudnn;
        let owned = (0..count_max).map(|_| Owned::new(cudnn, kind));
        let owned = owned.collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<Pointer> = owned.iter().map(|owned| owned.pointer).collect();
        // SAFETY: there are so many descriptors, which the library fills.
        let count = unsafe {
            let pointers = pointers.as_mut_ptr().cast();
            self.get(attribute, ElementType::DESCRIPTOR, count_max, pointers)
        }?;
        let filled = owned.into_iter().take(count);
        Ok(filled.map(|owned| self.described_by(owned)).collect())
    }

    /// A descriptor that this one filled, and keeps this one.
    fn described_by(&self, owned: Owned) -> Self {
        let uses = vec![self.clone()];
        Self { shared: Arc::new(Finalized { owned, _uses: uses, _handle: None }) }
    }

    /// Returns how many elements there are.
    ///
    /// # Safety
    /// `values` has room for `count_max` elements of this type.
    unsafe fn get(
        &self,
        attribute: Attribute,
        element: ElementType,
        count_max: usize,
        values: *mut c_void,
    ) -> Result<usize, Refusal> {
        let Owned { pointer, cudnn } = &self.shared.owned;
        let mut count = 0_i64;
        // SAFETY: as this function.
        let status = unsafe {
            (cudnn.functions.cudnnBackendGetAttribute)(
                *pointer,
                attribute.0,
                element.0,
                count_max as i64,
                &raw mut count,
                values,
            )
        };
        cudnn.check("reading an attribute", status)?;
        Ok(count.clamp(0, count_max as i64) as usize)
    }
}
