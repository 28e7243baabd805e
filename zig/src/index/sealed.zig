//! Work files that a later build of the same input may go on from. Such a file appears whole or not at all (temporary
//! file, fsync, rename, fsync of the folder) and ends in a trailer that says which build it belongs to, how far it got
//! and what the checksum of everything before the trailer is. Whatever does not fit is as good as missing.
const std = @import("std");
const base = @import("base");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

const magic = std.mem.readInt(u64, "velowork", .little);

const Trailer = extern struct {
    magic: u64 = magic,
    /// Of the build: its input, its options, its uuid.
    identity: u64,
    /// How far the stage had come, and in which form the payload is; their meaning is the stage's own.
    count: u64,
    form: u64,
    payload_bytes: u64,
    payload_sum: u64,
    /// Of the fields before.
    checksum: u64 = 0,

    fn sum(self: *const Trailer) u64 {
        return base.checksum(std.mem.asBytes(self)[0..@offsetOf(Trailer, "checksum")]);
    }
};

pub const Writer = struct {
    dir: std.fs.Dir,
    name: []const u8,
    file: files.FileWriter,

    pub fn create(allocator: std.mem.Allocator, dir: std.fs.Dir, comptime name: []const u8, diagnostic: *Diagnostic) Error!Writer {
        return .{ .dir = dir, .name = name, .file = try files.FileWriter.create(allocator, dir, name ++ ".tmp", diagnostic) };
    }

    pub fn deinit(self: *Writer) void {
        self.file.deinit();
    }

    pub fn write(self: *Writer, bytes: []const u8) Error!void {
        try self.file.write(bytes);
    }

    /// From now on the file stands under its name.
    pub fn seal(self: *Writer, identity: u64, count: u64, form: u64) Error!void {
        const diagnostic = self.file.diagnostic;
        const payload = try self.file.so_far();
        var trailer: Trailer = .{ .identity = identity, .count = count, .form = form, .payload_bytes = payload.bytes, .payload_sum = payload.checksum };
        trailer.checksum = trailer.sum();
        self.file.file.writeAll(std.mem.asBytes(&trailer)) catch |err| return diagnostics.file_error(diagnostic, self.name, "write", err);
        self.file.file.sync() catch |err| return diagnostics.file_error(diagnostic, self.name, "sync", err);
        self.dir.rename(self.file.name, self.name) catch |err| return diagnostics.file_error(diagnostic, self.name, "rename", err);
        std.posix.fsync(self.dir.fd) catch |err| return diagnostics.file_error(diagnostic, self.name, "sync", err);
    }
};

pub const Reader = struct {
    allocator: std.mem.Allocator,
    file: std.fs.File,
    count: u64,
    form: u64,
    left: u64,
    buffer: []u8,
    held: []const u8 = &.{},

    /// Null where there is no such file, or it is not whole, or of another build.
    pub fn open(allocator: std.mem.Allocator, dir: std.fs.Dir, name: []const u8, identity: u64) error{OutOfMemory}!?Reader {
        const file = dir.openFile(name, .{}) catch return null;
        var kept = false;
        defer if (!kept) file.close();
        const size = file.getEndPos() catch return null;
        if (size < @sizeOf(Trailer)) return null;
        var trailer: Trailer = undefined;
        const got = file.preadAll(std.mem.asBytes(&trailer), size - @sizeOf(Trailer)) catch return null;
        if (got != @sizeOf(Trailer) or trailer.magic != magic or trailer.checksum != trailer.sum()) return null;
        if (trailer.identity != identity or trailer.payload_bytes != size - @sizeOf(Trailer)) return null;
        const summary = files.summarize_first(allocator, file, trailer.payload_bytes) catch |err| switch (err) {
            error.OutOfMemory => return error.OutOfMemory,
            else => return null,
        };
        if (summary.bytes != trailer.payload_bytes or summary.checksum != trailer.payload_sum) return null;
        file.seekTo(0) catch return null;
        const buffer = try allocator.alloc(u8, files.chunk_bytes);
        kept = true;
        return .{ .allocator = allocator, .file = file, .count = trailer.count, .form = trailer.form, .left = trailer.payload_bytes, .buffer = buffer };
    }

    pub fn deinit(self: *Reader) void {
        self.allocator.free(self.buffer);
        self.file.close();
    }

    /// False if the payload ends before `out` is full, or cannot be read.
    pub fn read(self: *Reader, out: []u8) bool {
        var rest = out;
        while (rest.len > 0) {
            if (self.held.len == 0) {
                const wanted: usize = @intCast(@min(self.left, self.buffer.len));
                const got = self.file.readAll(self.buffer[0..wanted]) catch return false;
                if (got == 0) return false;
                self.left -= got;
                self.held = self.buffer[0..got];
            }
            const len = @min(rest.len, self.held.len);
            @memcpy(rest[0..len], self.held[0..len]);
            rest = rest[len..];
            self.held = self.held[len..];
        }
        return true;
    }
};

test "a sealed file reads back; cut, changed or of another build it is as good as missing" {
    const allocator = std.testing.allocator;
    var tmp = std.testing.tmpDir(.{ .iterate = true });
    defer tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const content = try allocator.alloc(u8, files.chunk_bytes + 777);
    defer allocator.free(content);
    for (content, 0..) |*byte, i| byte.* = @truncate(i * 11);
    {
        var writer = try Writer.create(allocator, tmp.dir, "a.work", &diagnostic);
        defer writer.deinit();
        try writer.write(content[0..5]);
        try writer.write(content[5..]);
        try std.testing.expectEqual(null, try Reader.open(allocator, tmp.dir, "a.work", 7));
        try writer.seal(7, 3, 1);
    }
    const back = try allocator.alloc(u8, content.len);
    defer allocator.free(back);
    {
        var reader = (try Reader.open(allocator, tmp.dir, "a.work", 7)).?;
        defer reader.deinit();
        try std.testing.expectEqual(3, reader.count);
        try std.testing.expectEqual(1, reader.form);
        try std.testing.expect(reader.read(back[0..100]));
        try std.testing.expect(reader.read(back[100..]));
        try std.testing.expectEqualSlices(u8, content, back);
        try std.testing.expect(!reader.read(back[0..1]));
    }
    try std.testing.expectEqual(null, try Reader.open(allocator, tmp.dir, "a.work", 8));
    const file = try tmp.dir.openFile("a.work", .{ .mode = .read_write });
    defer file.close();
    const size = try file.getEndPos();
    var prng = base.Prng.init(std.testing.random_seed);
    for (0..40) |_| {
        const at = prng.below(size);
        errdefer std.debug.print("byte {d}\n", .{at});
        var byte: [1]u8 = undefined;
        _ = try file.preadAll(&byte, at);
        try file.pwriteAll(&.{byte[0] ^ (@as(u8, 1) << @intCast(prng.below(8)))}, at);
        try std.testing.expectEqual(null, try Reader.open(allocator, tmp.dir, "a.work", 7));
        try file.pwriteAll(&byte, at);
    }
    try file.setEndPos(prng.below(size));
    try std.testing.expectEqual(null, try Reader.open(allocator, tmp.dir, "a.work", 7));
}
