//! The GPU room: kernels over codes and links in device memory, and the structs that they take.
pub const layout = @import("layout.zig");

test {
    _ = layout;
}
