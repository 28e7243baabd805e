//! Files of an index folder: written once from front to back, summed as they go, fsynced before the manifest names
//! them; read whole, with the sum checked.
//!
//! The checksum of a file is the xxh3-64 of the xxh3-64s of its 1 MiB chunks, so that it can be taken while
//! streaming, and by several threads.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub const chunk_bytes = 1 << 20;

pub const Summary = struct { bytes: u64, checksum: u64 };

/// The running checksum of a file.
const Sum = struct {
    chunk_sums: std.ArrayList(u64) = .empty,

    fn add(self: *Sum, allocator: std.mem.Allocator, chunk: []const u8) error{OutOfMemory}!void {
        try self.chunk_sums.append(allocator, base.checksum(chunk));
    }

    fn finish(self: *const Sum) u64 {
        return base.checksum(std.mem.sliceAsBytes(self.chunk_sums.items));
    }
};

/// Writes a new file. Everything goes through one aligned chunk.
pub const FileWriter = struct {
    allocator: std.mem.Allocator,
    file: std.fs.File,
    name: []const u8,
    diagnostic: *Diagnostic,
    chunk: []u8,
    used: usize = 0,
    written: u64 = 0,
    sum: Sum = .{},

    pub fn create(allocator: std.mem.Allocator, dir: std.fs.Dir, name: []const u8, diagnostic: *Diagnostic) Error!FileWriter {
        const file = dir.createFile(name, .{ .truncate = true, .read = true }) catch |err| return diagnostics.file_error(diagnostic, name, "create", err);
        errdefer file.close();
        return .{
            .allocator = allocator,
            .file = file,
            .name = name,
            .diagnostic = diagnostic,
            .chunk = try allocator.alloc(u8, chunk_bytes),
        };
    }

    pub fn deinit(self: *FileWriter) void {
        self.file.close();
        self.allocator.free(self.chunk);
        self.sum.chunk_sums.deinit(self.allocator);
    }

    pub fn write(self: *FileWriter, bytes: []const u8) Error!void {
        var rest = bytes;
        while (rest.len > 0) {
            const len = @min(rest.len, self.chunk.len - self.used);
            @memcpy(self.chunk[self.used..][0..len], rest[0..len]);
            self.used += len;
            rest = rest[len..];
            if (self.used == self.chunk.len) try self.flush();
        }
    }

    fn flush(self: *FileWriter) Error!void {
        if (self.used == 0) return;
        try self.sum.add(self.allocator, self.chunk[0..self.used]);
        self.file.writeAll(self.chunk[0..self.used]) catch |err|
            return diagnostics.file_error(self.diagnostic, self.name, "write", err);
        self.written += self.used;
        self.used = 0;
    }

    /// Puts `header` over the first bytes of the file, for what is only known at the end; then `finish`.
    pub fn finish_with_header(self: *FileWriter, header: []const u8) Error!Summary {
        try self.flush();
        const first_len: usize = @intCast(@min(self.written, chunk_bytes));
        std.debug.assert(header.len <= first_len);
        self.file.pwriteAll(header, 0) catch |err| return diagnostics.file_error(self.diagnostic, self.name, "write", err);
        const len = self.file.preadAll(self.chunk[0..first_len], 0) catch |err|
            return diagnostics.file_error(self.diagnostic, self.name, "read", err);
        if (len != first_len) return diagnostics.file_error(self.diagnostic, self.name, "read", error.EndOfStream);
        self.sum.chunk_sums.items[0] = base.checksum(self.chunk[0..first_len]);
        return self.finish();
    }

    /// Bytes written until now.
    pub fn so_far(self: *FileWriter) Error!Summary {
        try self.flush();
        return .{ .bytes = self.written, .checksum = self.sum.finish() };
    }

    /// Everything is on the device when this returns.
    pub fn finish(self: *FileWriter) Error!Summary {
        try self.flush();
        self.file.sync() catch |err| return diagnostics.file_error(self.diagnostic, self.name, "sync", err);
        return .{ .bytes = self.written, .checksum = self.sum.finish() };
    }
};

/// Size and checksum of a file that is already written, read in chunks.
pub fn summarize(allocator: std.mem.Allocator, dir: std.fs.Dir, name: []const u8, diagnostic: *Diagnostic) Error!Summary {
    const file = dir.openFile(name, .{}) catch |err| return open_error(diagnostic, name, err);
    defer file.close();
    return summarize_first(allocator, file, std.math.maxInt(u64)) catch |err| switch (err) {
        error.OutOfMemory => error.OutOfMemory,
        else => diagnostics.file_error(diagnostic, name, "read", err),
    };
}

/// The same of the first `bytes_max` bytes of an open file.
pub fn summarize_first(allocator: std.mem.Allocator, file: std.fs.File, bytes_max: u64) !Summary {
    const chunk = try allocator.alloc(u8, chunk_bytes);
    defer allocator.free(chunk);
    var sum: Sum = .{};
    defer sum.chunk_sums.deinit(allocator);
    var bytes: u64 = 0;
    while (bytes < bytes_max) {
        const wanted: usize = @intCast(@min(chunk.len, bytes_max - bytes));
        const len = try file.preadAll(chunk[0..wanted], bytes);
        if (len > 0) try sum.add(allocator, chunk[0..len]);
        bytes += len;
        if (len < wanted) break;
    }
    return .{ .bytes = bytes, .checksum = sum.finish() };
}

/// A file named by the manifest that is missing or shorter is damage, not a caller's mistake.
pub fn open_error(diagnostic: *Diagnostic, name: []const u8, err: anyerror) Error {
    if (err == error.FileNotFound) {
        diagnostic.in_file(name, "{s} is missing from the index", .{name});
        return error.Corrupt;
    }
    return diagnostics.file_error(diagnostic, name, "open", err);
}

/// A file that is open already, opened once more: it is read through the page cache, whether or not the given descriptor
/// bypasses that. Where the system refuses that (no /proc, fewer rights than before), the given descriptor is used.
pub const Reopened = struct {
    file: std.fs.File,
    is_own: bool,

    pub fn of(fd: std.posix.fd_t) Reopened {
        var room: [32]u8 = undefined;
        const path = std.fmt.bufPrint(&room, "/proc/self/fd/{d}", .{fd}) catch unreachable;
        const file = std.fs.openFileAbsolute(path, .{}) catch return .{ .file = .{ .handle = fd }, .is_own = false };
        return .{ .file = file, .is_own = true };
    }

    pub fn close(self: *const Reopened) void {
        if (self.is_own) self.file.close();
    }
};

/// Reads a file whole into `buffer` (exactly its size) and checks its sum.
pub fn read_checked(
    allocator: std.mem.Allocator,
    dir: std.fs.Dir,
    name: []const u8,
    buffer: []u8,
    checksum: u64,
    diagnostic: *Diagnostic,
) Error!void {
    const file = dir.openFile(name, .{}) catch |err| return open_error(diagnostic, name, err);
    defer file.close();
    const size = file.getEndPos() catch |err| return diagnostics.file_error(diagnostic, name, "stat", err);
    const len = file.readAll(buffer) catch |err| return diagnostics.file_error(diagnostic, name, "read", err);
    if (len != buffer.len or size != buffer.len) {
        diagnostic.in_file(name, "{s} has {d} bytes where the manifest says {d}", .{ name, size, buffer.len });
        return error.Corrupt;
    }
    var sum: Sum = .{};
    defer sum.chunk_sums.deinit(allocator);
    var at: usize = 0;
    while (at < buffer.len) : (at += chunk_bytes) try sum.add(allocator, buffer[at..@min(buffer.len, at + chunk_bytes)]);
    if (sum.finish() != checksum) {
        diagnostic.in_file(name, "the checksum of {s} does not match the manifest", .{name});
        return error.Corrupt;
    }
}

/// A checked file, mapped: for what is read once, in order, and never has to stand in memory whole (`forget`).
pub const Mapped = struct {
    bytes: []align(std.heap.page_size_min) const u8,

    pub fn free(self: *Mapped) void {
        std.posix.munmap(self.bytes);
    }
};

/// Maps a file that the manifest names, and checks its size and sum.
pub fn map_checked(allocator: std.mem.Allocator, dir: std.fs.Dir, entry: layout.manifest.File, diagnostic: *Diagnostic) Error!Mapped {
    const checksum = std.fmt.parseInt(u64, entry.checksum, 16) catch return bad_manifest(diagnostic, entry.name);
    const size = std.math.cast(usize, entry.bytes) orelse return error.OutOfMemory;
    const name = entry.name;
    const file = dir.openFile(name, .{}) catch |err| return open_error(diagnostic, name, err);
    defer file.close();
    const found = file.getEndPos() catch |err| return diagnostics.file_error(diagnostic, name, "stat", err);
    if (found != size or size == 0) {
        diagnostic.in_file(name, "{s} has {d} bytes where the manifest says {d}", .{ name, found, size });
        return error.Corrupt;
    }
    const bytes = std.posix.mmap(null, size, std.posix.PROT.READ, .{ .TYPE = .PRIVATE }, file.handle, 0) catch |err|
        return diagnostics.file_error(diagnostic, name, "map", err);
    errdefer std.posix.munmap(bytes);
    var sum: Sum = .{};
    defer sum.chunk_sums.deinit(allocator);
    var at: usize = 0;
    while (at < size) : (at += chunk_bytes) {
        const chunk = bytes[at..@min(size, at + chunk_bytes)];
        try sum.add(allocator, chunk);
        forget(chunk);
    }
    if (sum.finish() != checksum) {
        diagnostic.in_file(name, "the checksum of {s} does not match the manifest", .{name});
        return error.Corrupt;
    }
    return .{ .bytes = bytes };
}

/// Takes the whole pages of a part of a mapped file out of the resident set; they come back when they are read again.
pub fn forget(part: []const u8) void {
    const page = std.heap.page_size_min;
    const begin = std.mem.alignForward(usize, @intFromPtr(part.ptr), page);
    const end = std.mem.alignBackward(usize, @intFromPtr(part.ptr) + part.len, page);
    if (begin >= end) return;
    const pages: [*]align(page) u8 = @ptrFromInt(begin);
    std.posix.madvise(pages, end - begin, std.posix.MADV.DONTNEED) catch {}; // a wish: without it they stay resident
}

/// Replaces `name` by these bytes: a temporary file, fsync, rename, fsync of the folder.
pub fn replace(dir: std.fs.Dir, name: []const u8, bytes: []const u8, diagnostic: *Diagnostic) Error!void {
    var buffer: [256]u8 = undefined;
    const temporary = std.fmt.bufPrint(&buffer, "{s}.tmp", .{name}) catch unreachable; // our own short names
    write_and_rename(Disk{ .dir = dir }, name, temporary, bytes) catch |err| {
        dir.deleteFile(temporary) catch {};
        return diagnostics.file_error(diagnostic, name, "write", err);
    };
}

/// Over any store with these calls, so that a test can look at what each of them would leave if it were the last.
fn write_and_rename(store: anytype, name: []const u8, temporary: []const u8, bytes: []const u8) !void {
    {
        const file = try store.create(temporary);
        defer store.close(file);
        try store.write(file, bytes);
        try store.sync(file);
    }
    try store.rename(temporary, name);
    try store.sync_folder();
}

const Disk = struct {
    dir: std.fs.Dir,

    fn create(self: Disk, name: []const u8) !std.fs.File {
        return self.dir.createFile(name, .{ .truncate = true });
    }
    fn write(_: Disk, file: std.fs.File, bytes: []const u8) !void {
        try file.writeAll(bytes);
    }
    fn sync(_: Disk, file: std.fs.File) !void {
        try file.sync();
    }
    fn close(_: Disk, file: std.fs.File) void {
        file.close();
    }
    fn rename(self: Disk, from: []const u8, to: []const u8) !void {
        try self.dir.rename(from, to);
    }
    fn sync_folder(self: Disk) !void {
        try std.posix.fsync(self.dir.fd);
    }
};

/// A store that keeps the least that a file system may after a power cut: the bytes of a file as of its last sync, and of
/// names those before a rename or those after it. Whenever the new name may be there the whole file must be.
const Losing = struct {
    synced: []const u8 = "",
    written: []const u8 = "",
    renamed: bool = false,
    folder_synced: bool = false,
    whole: []const u8,

    fn check(self: *const Losing) !void {
        // A rename may reach the device before anything that was not synced.
        if (self.renamed) try std.testing.expectEqualStrings(self.whole, self.synced);
    }
    fn create(self: *Losing, name: []const u8) !u8 {
        try std.testing.expectEqualStrings("m.tmp", name);
        try self.check();
        return 1;
    }
    fn write(self: *Losing, _: u8, bytes: []const u8) !void {
        self.written = bytes;
        try self.check();
    }
    fn sync(self: *Losing, _: u8) !void {
        self.synced = self.written;
        try self.check();
    }
    fn close(_: *Losing, _: u8) void {}
    fn rename(self: *Losing, from: []const u8, to: []const u8) !void {
        try std.testing.expectEqualStrings("m.tmp", from);
        try std.testing.expectEqualStrings("m", to);
        self.renamed = true;
        try self.check();
    }
    fn sync_folder(self: *Losing) !void {
        self.folder_synced = self.renamed;
        try self.check();
    }
};

pub const file_codes = "codes.bin";
pub const file_links = "links.bin";
pub const file_pages = "pages.bin";
pub const file_page_starts = "page_starts.bin";
pub const file_page_codes = "page_codes.bin";
pub const file_vectors = "vectors.bin";

/// Only a missing folder is no index; where the system refuses to open it its content is unknown.
pub fn open_folder_error(path: []const u8, err: anyerror, diagnostic: *Diagnostic) Error {
    switch (err) {
        error.FileNotFound, error.NotDir, error.BadPathName, error.InvalidUtf8, error.NameTooLong => {
            diagnostic.say("{s} is no index: {t}", .{ path, err });
            return error.NotAnIndex;
        },
        else => return diagnostics.file_error(diagnostic, path, "open", err),
    }
}

pub fn read_manifest(allocator: std.mem.Allocator, dir: std.fs.Dir, path: []const u8, diagnostic: *Diagnostic) Error!layout.manifest.Parsed {
    const text = dir.readFileAlloc(allocator, layout.manifest.file_name, layout.manifest.bytes_max) catch |err| switch (err) {
        error.FileNotFound => {
            diagnostic.say("{s} is no index: it has no {s} (a build that did not finish?)", .{ path, layout.manifest.file_name });
            return error.NotAnIndex;
        },
        error.OutOfMemory => return error.OutOfMemory,
        else => return diagnostics.file_error(diagnostic, layout.manifest.file_name, "read", err),
    };
    defer allocator.free(text);
    return layout.manifest.parse(allocator, text) catch |err| switch (err) {
        error.OutOfMemory => error.OutOfMemory,
        error.NewerVersion => {
            diagnostic.in_file(layout.manifest.file_name, "this index was written by a newer version of velo (this one reads formats up to {d})", .{layout.manifest.format_version_newest});
            return error.UnsupportedVersion;
        },
        error.OlderVersion => {
            diagnostic.in_file(layout.manifest.file_name, "this index was written by an earlier version of velo and has another format (this one reads format {d}): build it again", .{layout.format_version});
            return error.UnsupportedVersion;
        },
        error.BadManifest => {
            diagnostic.in_file(layout.manifest.file_name, "{s} is damaged", .{layout.manifest.file_name});
            return error.Corrupt;
        },
    };
}

/// Whether centers and factors are such.
pub fn codes_valid(codes: *const quant.Codes) bool {
    const center_count = codes.centers.len / codes.params.dim;
    for (codes.center_ids) |center| if (center >= center_count) return false;
    for (codes.factors) |pair| if (@max(pair & 0xffff, pair >> 16) > quant.PositiveFloat.largest) return false;
    return true;
}

pub fn all_finite(values: []const f32) bool {
    for (values) |value| if (!std.math.isFinite(value)) return false;
    return true;
}

pub fn check_file(allocator: std.mem.Allocator, dir: std.fs.Dir, file: layout.manifest.File, diagnostic: *Diagnostic) Error!void {
    const sum = std.fmt.parseInt(u64, file.checksum, 16) catch return bad_manifest(diagnostic, file.name);
    try check_size(dir, file, diagnostic);
    const summary = try summarize(allocator, dir, file.name, diagnostic);
    if (summary.checksum != sum) {
        diagnostic.in_file(file.name, "the checksum of {s} does not match the manifest", .{file.name});
        return error.Corrupt;
    }
}

pub fn check_size(dir: std.fs.Dir, file: layout.manifest.File, diagnostic: *Diagnostic) Error!void {
    const stat = dir.statFile(file.name) catch |err| return open_error(diagnostic, file.name, err);
    if (stat.size != file.bytes) {
        diagnostic.in_file(file.name, "{s} has {d} bytes where the manifest says {d}", .{ file.name, stat.size, file.bytes });
        return error.Corrupt;
    }
}

pub fn bad_manifest(diagnostic: *Diagnostic, what: []const u8) Error {
    diagnostic.in_file(layout.manifest.file_name, "the manifest says nothing sensible of {s}", .{what});
    return error.Corrupt;
}

pub fn bad_file(diagnostic: *Diagnostic, name: []const u8) Error {
    diagnostic.in_file(name, "{s} is damaged: its header or tables contradict the manifest", .{name});
    return error.Corrupt;
}

test "a file takes its name after its bytes are on the device, and the name is there when replacing ends" {
    var store: Losing = .{ .whole = "the new file" };
    try write_and_rename(&store, "m", "m.tmp", store.whole);
    try std.testing.expect(store.renamed);
    try std.testing.expect(store.folder_synced);
}

test "a written file reads back, and a changed one does not" {
    const allocator = std.testing.allocator;
    var tmp = std.testing.tmpDir(.{});
    defer tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const content = try allocator.alloc(u8, 2 * chunk_bytes + 77);
    defer allocator.free(content);
    for (content, 0..) |*byte, i| byte.* = @truncate(i * 7);
    var writer = try FileWriter.create(allocator, tmp.dir, "a.bin", &diagnostic);
    try writer.write(content[0..10]);
    try writer.write(content[10..]);
    const summary = try writer.finish();
    writer.deinit();
    try std.testing.expectEqual(summary, try summarize(allocator, tmp.dir, "a.bin", &diagnostic));
    const back = try allocator.alloc(u8, content.len);
    defer allocator.free(back);
    try read_checked(allocator, tmp.dir, "a.bin", back, summary.checksum, &diagnostic);
    try std.testing.expectEqualSlices(u8, content, back);
    try std.testing.expectError(error.Corrupt, read_checked(allocator, tmp.dir, "a.bin", back, summary.checksum ^ 1, &diagnostic));
    try std.testing.expectError(error.Corrupt, read_checked(allocator, tmp.dir, "a.bin", back[1..], summary.checksum, &diagnostic));
    try std.testing.expectError(error.Corrupt, read_checked(allocator, tmp.dir, "b.bin", back, summary.checksum, &diagnostic));
    try std.testing.expectEqualStrings("b.bin", diagnostic.file());
}
