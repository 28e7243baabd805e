//! Work files of a build: what must wait until placement, in row order. They are read back through the page cache,
//! not mapped, so they do not count against the memory of the build.
const std = @import("std");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub const codes_name = "codes.work";
pub const vectors_name = "vectors.work";

/// upper code, lower code, then norm2, f_upper and f_full as float32.
pub fn row_bytes_of(params: quant.CodeParams) usize {
    return params.upper_bytes() + params.lower_bytes() + 3 * @sizeOf(f32);
}

/// What the factors span, and the mean squared tangents of the code errors.
pub const Ranges = struct {
    norm2: Span = .{},
    f_upper: Span = .{},
    f_full: Span = .{},
    tan2_upper: f64 = 0,
    tan2_full: f64 = 0,
    count: u64 = 0,

    pub const Span = struct {
        min: f32 = std.math.floatMax(f32),
        max: f32 = -std.math.floatMax(f32),

        fn add(self: *Span, value: f32) void {
            self.min = @min(self.min, value);
            self.max = @max(self.max, value);
        }

        fn join(self: *Span, other: Span) void {
            self.min = @min(self.min, other.min);
            self.max = @max(self.max, other.max);
        }
    };

    fn join(self: *Ranges, other: *const Ranges) void {
        self.norm2.join(other.norm2);
        self.f_upper.join(other.f_upper);
        self.f_full.join(other.f_full);
        self.tan2_upper += other.tan2_upper;
        self.tan2_full += other.tan2_full;
        self.count += other.count;
    }
};

pub fn store_row(params: quant.CodeParams, code: []const u16, factors: quant.Factors, out: []u8, ranges: *Ranges) void {
    const upper = params.upper_bytes();
    const lower = params.lower_bytes();
    quant.pack(code, @intCast(params.record_bits), params.memory_bits, out[0..upper]);
    if (params.record_bits > 0) quant.pack(code, 0, params.record_bits, out[upper..][0..lower]);
    for ([_]f32{ factors.norm2, factors.f_upper, factors.f_full }, 0..) |value, i|
        std.mem.writeInt(u32, out[upper + lower + 4 * i ..][0..4], @bitCast(value), .little);
    ranges.norm2.add(factors.norm2);
    ranges.f_upper.add(factors.f_upper);
    ranges.f_full.add(factors.f_full);
    ranges.tan2_upper += factors.tan2_upper;
    ranges.tan2_full += factors.tan2_full;
    ranges.count += 1;
}

pub const Row = struct { upper: []const u8, lower: []const u8, norm2: f32, f_upper: f32, f_full: f32 };

pub const CodesFile = struct {
    allocator: std.mem.Allocator,
    file: std.fs.File,
    params: quant.CodeParams,
    row_bytes: usize,
    buffer: []u8,
    used: usize = 0,
    ranges: Ranges = .{},

    const buffer_bytes = 1 << 20;

    pub fn create(allocator: std.mem.Allocator, dir: std.fs.Dir, params: quant.CodeParams, diagnostic: *Diagnostic) Error!CodesFile {
        const file = try create_file(dir, codes_name, diagnostic);
        errdefer file.close();
        return .{
            .allocator = allocator,
            .file = file,
            .params = params,
            .row_bytes = row_bytes_of(params),
            .buffer = try allocator.alloc(u8, @max(buffer_bytes, row_bytes_of(params))),
        };
    }

    pub fn deinit(self: *CodesFile, dir: std.fs.Dir) void {
        self.file.close();
        self.allocator.free(self.buffer);
        dir.deleteFile(codes_name) catch {};
    }

    pub fn append(self: *CodesFile, bytes: []const u8, ranges: *const Ranges, diagnostic: *Diagnostic) Error!void {
        self.ranges.join(ranges);
        var rest = bytes;
        while (rest.len > 0) {
            const len = @min(rest.len, self.buffer.len - self.used);
            @memcpy(self.buffer[self.used..][0..len], rest[0..len]);
            self.used += len;
            rest = rest[len..];
            if (self.used == self.buffer.len) try self.flush(diagnostic);
        }
    }

    fn flush(self: *CodesFile, diagnostic: *Diagnostic) Error!void {
        self.file.writeAll(self.buffer[0..self.used]) catch |err| return diagnostics.file_error(diagnostic, codes_name, "write", err);
        self.used = 0;
    }

    pub fn finish(self: *CodesFile, diagnostic: *Diagnostic) Error!void {
        try self.flush(diagnostic);
    }

    /// Reads row `index` into `buffer` (row_bytes).
    pub fn read(self: *const CodesFile, index: u32, buffer: []u8, diagnostic: *Diagnostic) Error!Row {
        const len = self.file.preadAll(buffer[0..self.row_bytes], @as(u64, index) * self.row_bytes) catch |err|
            return diagnostics.file_error(diagnostic, codes_name, "read", err);
        if (len != self.row_bytes) {
            diagnostic.in_file(codes_name, "{s} ended early at row {d}", .{ codes_name, index });
            return error.Io;
        }
        const upper = self.params.upper_bytes();
        const lower = self.params.lower_bytes();
        var factors: [3]f32 = undefined;
        for (&factors, 0..) |*factor, i| factor.* = @bitCast(std.mem.readInt(u32, buffer[upper + lower + 4 * i ..][0..4], .little));
        return .{ .upper = buffer[0..upper], .lower = buffer[upper..][0..lower], .norm2 = factors[0], .f_upper = factors[1], .f_full = factors[2] };
    }
};

pub fn create_file(dir: std.fs.Dir, name: []const u8, diagnostic: *Diagnostic) Error!std.fs.File {
    return dir.createFile(name, .{ .truncate = true, .read = true }) catch |err| diagnostics.file_error(diagnostic, name, "create", err);
}
