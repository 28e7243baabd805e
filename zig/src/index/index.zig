//! An index folder as a whole: building it, reading it, verifying it.
pub const diagnostic = @import("diagnostic.zig");
pub const Diagnostic = diagnostic.Diagnostic;
pub const Error = diagnostic.Error;
pub const reader = @import("reader.zig");
pub const Reader = reader.Reader;
pub const Metric = space.Metric;
pub const Dtype = space.Dtype;
pub const builder = @import("builder.zig");
pub const Builder = builder.Builder;
pub const Walker = @import("options.zig").Walker;
pub const page_size_most = @import("options.zig").page_size_most;
pub const WarmStart = @import("warm_start.zig").WarmStart;
pub const PageProducts = @import("page_codes.zig").PageProducts;
pub const recommit = @import("committed.zig").recommit;
pub const space = @import("space.zig");
pub const store_calibration = @import("committed.zig").store_calibration;
pub const vectors = @import("vectors.zig");
pub const trim = @import("lists_in_memory.zig");
pub const sizes = @import("sizes.zig");
pub const block_adjacency = @import("block_adjacency.zig");
pub const verify = @import("committed.zig").verify;

test {
    _ = @import("files.zig");
    _ = diagnostic;
    _ = reader;
    _ = builder;
    _ = @import("options.zig");
    _ = @import("folder.zig");
    _ = @import("work.zig");
    _ = @import("resume.zig");
    _ = @import("warm_start.zig");
    _ = space;
    _ = trim;
    _ = sizes;
    _ = block_adjacency;
    _ = vectors;
    _ = @import("committed.zig");
    _ = @import("index_test.zig");
    _ = @import("partitions_test.zig");
    _ = @import("tables_test.zig");
}
