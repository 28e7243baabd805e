//! One thread's share of the second pass: a run of rows from their input to what the work files store.
const std = @import("std");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const space = @import("space.zig");
const work = @import("work.zig");
const Builder = @import("builder.zig").Builder;
const Error = diagnostics.Error;

/// Rows are encoded in runs of at most this many, a run a thread at a time.
pub const run_rows = 1024;

pub const EncodeThread = struct {
    encoder: quant.Encoder,
    build_encoder: quant.Encoder,
    row: []f32, // dim
    rotated: []f32, // dim_code
    code: []u16,
    stored: []u8,
    points: quant.BuildCodes,
    errors: work.CodeErrors = .{},
    /// Of these rows of the run `stored` has the codes already (former_codes.zig).
    has_code: std.StaticBitSet(run_rows) = .initEmpty(),
    changed_row: ?u64 = null,
    thread: ?std.Thread = null,
    builder: *Builder = undefined,
    rows: [*]const u8 = undefined,
    stride: u64 = 0,
    first: u64 = 0,
    count: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, dim: u32, params: quant.CodeParams) Error!EncodeThread {
        var encoder = try quant.Encoder.init(allocator, params);
        errdefer encoder.deinit(allocator);
        var build_encoder = try quant.Encoder.init(allocator, quant.BuildCodes.params_of(params.dim));
        errdefer build_encoder.deinit(allocator);
        const row = try allocator.alloc(f32, dim);
        errdefer allocator.free(row);
        const rotated = try allocator.alloc(f32, params.dim);
        errdefer allocator.free(rotated);
        const code = try allocator.alloc(u16, params.dim);
        errdefer allocator.free(code);
        const stored = try allocator.alloc(u8, run_rows * work.row_bytes_of(params));
        errdefer allocator.free(stored);
        const points = try quant.BuildCodes.init(run_rows, params.dim);
        return .{ .encoder = encoder, .build_encoder = build_encoder, .row = row, .rotated = rotated, .code = code, .stored = stored, .points = points };
    }

    pub fn deinit(self: *EncodeThread, allocator: std.mem.Allocator) void {
        self.encoder.deinit(allocator);
        self.build_encoder.deinit(allocator);
        allocator.free(self.row);
        allocator.free(self.rotated);
        allocator.free(self.code);
        allocator.free(self.stored);
        self.points.deinit();
    }

    pub fn start(self: *EncodeThread, builder: *Builder, rows: [*]const u8, stride: u64, first: u64, count: u32) void {
        self.builder = builder;
        self.rows = rows;
        self.stride = stride;
        self.first = first;
        self.count = count;
        self.has_code = .initEmpty();
        self.changed_row = null;
        self.thread = null;
    }

    pub fn run(self: *EncodeThread) void {
        const b = self.builder;
        const params = b.params;
        const row_bytes = b.options.dim * b.options.dtype.bytes();
        const stored_bytes = work.row_bytes_of(params);
        for (0..self.count) |i| {
            space.convert(b.options.dtype, self.rows[i * self.stride ..][0..row_bytes], self.row);
            if (!space.is_finite(self.row)) {
                self.changed_row = self.first + i;
                return;
            }
            b.to_code_space(self.row, self.rotated);
            self.points.set(@intCast(i), &self.build_encoder, self.rotated, self.code);
            if (self.has_code.isSet(i)) continue;
            const centers = &b.centers.?;
            const center = centers.nearest(self.rotated);
            for (self.rotated, centers.at(center)) |*value, own| value.* -= own;
            const factors = self.encoder.encode(self.rotated, self.code);
            const kept = self.encoder.store_factors(space.form(b.options.metric), self.code, factors, centers.at(center), centers.norms2[center]);
            work.store_row(params, self.code, center, &factors, &kept, self.stored[i * stored_bytes ..][0..stored_bytes], &self.errors);
        }
    }
};
