//! A folder with live data from nothing: no part, no row, an empty log.
const std = @import("std");
const base = @import("base");
const diagnostics = @import("diagnostic.zig");
const log_file = @import("log.zig");
const root_file = @import("root.zig");
const scan = @import("scan.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub const Options = struct {
    dim: u32,
    metric: scan.Metric,
    dtype: scan.Dtype,
    /// Whatever the caller wants to find again as the columns of its metadata.
    schema: ?[]const u8 = null,
    seed: ?u64 = null,
};

/// The folder is there, and holds nothing. Its root comes last, so a folder in which this was killed holds no index.
pub fn create(allocator: std.mem.Allocator, store: anytype, options: Options, diagnostic: *Diagnostic) Error!void {
    var prng = base.Prng.init(options.seed orelse std.crypto.random.int(u64));
    var raw: [16]u8 = undefined;
    prng.source.fill(&raw);
    const uuid = std.fmt.bytesToHex(raw, .lower);
    const header: log_file.Header = .{ .uuid = raw, .salt = prng.next(), .first_sequence = 1 };
    const log_name = "log-0000000000000001.velolog";
    try diagnostics.write_file(store, log_name, &header.encode(), diagnostic);
    try diagnostics.sync_folder(store, ".", diagnostic);
    const root: root_file.Root = .{
        .uuid = &uuid,
        .generation = 1,
        .dim = options.dim,
        .metric = @tagName(options.metric),
        .dtype = @tagName(options.dtype),
        .schema = options.schema,
        .sequence = 0,
        .next_row = 0,
        .next_file = 2,
        .parts = &.{},
        .first_log = log_name,
    };
    const text = try root_file.write(allocator, &root);
    defer allocator.free(text);
    const temporary = root_file.file_name ++ ".tmp";
    try diagnostics.write_file(store, temporary, text, diagnostic);
    store.rename(temporary, root_file.file_name) catch |err| return diagnostics.file_error(diagnostic, root_file.file_name, "replace", err);
    try diagnostics.sync_folder(store, ".", diagnostic);
}
