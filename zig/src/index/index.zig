//! An index folder as a whole: building it, reading it, verifying it.
pub const diagnostic = @import("diagnostic.zig");
pub const Diagnostic = diagnostic.Diagnostic;
pub const Error = diagnostic.Error;
pub const reader = @import("reader.zig");
pub const Reader = reader.Reader;
pub const Metric = reader.Metric;
pub const Dtype = reader.Dtype;
pub const builder = @import("builder.zig");
pub const Builder = builder.Builder;
pub const Former = @import("former.zig").Former;
pub const recommit = @import("recommit.zig").recommit;
pub const space = @import("space.zig");
pub const store_calibration = @import("amend.zig").store_calibration;
pub const vectors = @import("vectors.zig");
pub const trim = @import("trim.zig");
pub const page_ways = @import("page_ways.zig");
pub const verify = @import("verify.zig").verify;

test {
    _ = @import("files.zig");
    _ = diagnostic;
    _ = reader;
    _ = builder;
    _ = @import("options.zig");
    _ = @import("folder.zig");
    _ = @import("list_file.zig");
    _ = @import("partitions.zig");
    _ = @import("sealed.zig");
    _ = @import("resume.zig");
    _ = @import("encode_thread.zig");
    _ = @import("former.zig");
    _ = @import("former_codes.zig");
    _ = @import("page_walk.zig");
    _ = space;
    _ = trim;
    _ = page_ways;
    _ = vectors;
    _ = @import("verify.zig");
    _ = @import("index_test.zig");
    _ = @import("partitions_test.zig");
}
