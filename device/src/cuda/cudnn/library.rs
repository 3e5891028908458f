//! cuDNN, open, and its texts for statuses.
#![allow(unsafe_code)] // calls cuDNN

use std::ffi::CStr;

use super::Refusal;
use crate::cuda::cudnn_functions::{CudnnFunctions, Status};
use crate::cuda::{Error, Libraries};

/// cuDNN, open for the life of the process.
#[derive(Debug, Clone, Copy)]
pub struct Cudnn {
    pub(super) functions: &'static CudnnFunctions,
}

impl Cudnn {
    /// Opens cuDNN, unless it is open. Needs no driver: plans are made without a device too.
    ///
    /// # Errors
    /// Fails if it is missing, or older than the version that this program was written for.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { functions: &Libraries::open_cudnn()?.functions })
    }

    /// Fails with cuDNN's text for a status other than success.
    pub(super) fn check(self, call: &'static str, status: Status) -> Result<(), Refusal> {
        if status == 0 {
            return Ok(());
        }
        Err(Refusal { call, status, text: self.text(status) })
    }

    /// cuDNN's text for a status, and for the last error of this thread.
    fn text(self, status: Status) -> String {
        let mut message = [0_u8; 512];
        // SAFETY: the first accepts every number and returns a text that ends with a zero; the
        // second writes at most so many bytes, with a zero at their end.
        let name = unsafe {
            let length = message.len();
            (self.functions.cudnnGetLastErrorString)(message.as_mut_ptr().cast(), length);
            CStr::from_ptr((self.functions.cudnnGetErrorString)(status))
        };
        let name = name.to_string_lossy();
        let last = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy();
        match last.trim() {
            "" => name.into_owned(),
            last => format!("{name} ({last})"),
        }
    }
}
