//! The contract of a file system for live data, and the real one. `Live` takes the store as a type, so that a simulated one
//! (zig/src/sim/store.zig) can lose, tear and refuse whatever a crash or a full disk may.
//!
//! The contract: names are paths inside one folder. Bytes written to a file survive a crash only after `sync` of that file
//! returned; creation, removal and replacement of a name only after `sync_folder` of its folder did. Before that any
//! part may survive. After a failed `sync` the state on the device is unknown.
const std = @import("std");
const base = @import("base");

/// A folder by its descriptor, which its last user closes.
pub const SharedFolder = struct {
    dir: std.fs.Dir,
    users: std.atomic.Value(u32) = .init(1),

    pub fn create(dir: std.fs.Dir) error{OutOfMemory}!*SharedFolder {
        const self = try base.allocator.create(SharedFolder);
        self.* = .{ .dir = dir };
        return self;
    }

    pub fn release(self: *SharedFolder) void {
        if (self.users.fetchSub(1, .acq_rel) > 1) return;
        self.dir.close();
        base.allocator.destroy(self);
    }
};

pub const FolderStore = struct {
    dir: std.fs.Dir,
    /// Closes `dir`; null: this store does.
    shared: ?*SharedFolder = null,
    /// Held by the one process that writes.
    lock: ?std.fs.File = null,

    pub const File = std.fs.File;
    pub const Map = []align(std.heap.page_size_min) const u8;
    pub const Hold = std.fs.File;

    pub fn open(path: []const u8) !FolderStore {
        return .{ .dir = try std.fs.cwd().openDir(path, .{ .iterate = true }) };
    }

    pub fn of(shared: *SharedFolder) FolderStore {
        _ = shared.users.fetchAdd(1, .acq_rel);
        return .{ .dir = shared.dir, .shared = shared };
    }

    pub fn deinit(self: *FolderStore) void {
        if (self.lock) |file| {
            file.unlock(); // a forked child may hold the descriptor, and with it the lock, for long
            file.close();
        }
        if (self.shared) |shared| shared.release() else self.dir.close();
    }

    /// False where another process, or another handle of this one, holds it. The lock ends with its process.
    pub fn lock_for_writing(self: *FolderStore) !bool {
        const file = File{ .handle = try std.posix.openat(self.dir.fd, ".", .{ .ACCMODE = .RDONLY, .DIRECTORY = true, .CLOEXEC = true }, 0) };
        errdefer file.close();
        if (!try file.tryLock(.exclusive)) {
            file.close();
            return false;
        }
        self.lock = file;
        return true;
    }

    /// A new, empty file, in the place of one of that name.
    pub fn create(self: *FolderStore, name: []const u8) !File {
        return self.dir.createFile(name, .{ .truncate = true, .read = true });
    }

    pub fn open_file(self: *FolderStore, name: []const u8, mode: std.fs.File.OpenMode) !File {
        return self.open_regular(name, if (mode == .read_only) .RDONLY else .RDWR);
    }

    /// Only files are opened: to open a pipe may take for ever.
    fn open_regular(self: *FolderStore, name: []const u8, mode: std.posix.ACCMODE) !File {
        const file = File{ .handle = try std.posix.openat(self.dir.fd, name, .{ .ACCMODE = mode, .NONBLOCK = true, .CLOEXEC = true }, 0) };
        errdefer file.close();
        if ((try file.stat()).kind != .file) return error.NotAFile;
        return file;
    }

    pub fn close(_: *FolderStore, file: File) void {
        file.close();
    }

    pub fn size(_: *FolderStore, file: File) !u64 {
        return file.getEndPos();
    }

    /// Fills the buffer as far as the file goes.
    pub fn read(_: *FolderStore, file: File, buffer: []u8, offset: u64) !usize {
        return file.preadAll(buffer, offset);
    }

    pub fn write(_: *FolderStore, file: File, bytes: []const u8, offset: u64) !void {
        return file.pwriteAll(bytes, offset);
    }

    pub fn sync(_: *FolderStore, file: File) !void {
        return std.posix.fdatasync(file.handle);
    }

    pub fn truncate(_: *FolderStore, file: File, length: u64) !void {
        return file.setEndPos(length);
    }

    pub fn rename(self: *FolderStore, from: []const u8, to: []const u8) !void {
        return self.dir.rename(from, to);
    }

    /// A second name for the same file.
    pub fn link(self: *FolderStore, from: []const u8, to: []const u8) !void {
        return std.posix.linkat(self.dir.fd, from, self.dir.fd, to, 0);
    }

    pub fn remove(self: *FolderStore, name: []const u8) !void {
        return self.dir.deleteFile(name);
    }

    pub fn make_folder(self: *FolderStore, name: []const u8) !void {
        return self.dir.makeDir(name);
    }

    /// A folder of the index with all it holds.
    pub fn remove_folder(self: *FolderStore, name: []const u8) !void {
        return self.dir.deleteTree(name);
    }

    /// The same, unless somebody has locked it to read.
    pub fn remove_unheld(self: *FolderStore, name: []const u8) !void {
        const file = File{ .handle = try std.posix.openat(self.dir.fd, name, .{ .ACCMODE = .RDONLY, .DIRECTORY = true, .CLOEXEC = true }, 0) };
        defer file.close();
        if (!try file.tryLock(.exclusive)) return;
        // A reader that opens it now finds no manifest, or is too late altogether.
        return self.dir.deleteTree(name);
    }

    /// A folder of the index that `remove_unheld` leaves in place until `release`; `WouldBlock`: it is being removed.
    pub fn hold(self: *FolderStore, name: []const u8) !Hold {
        const file = File{ .handle = try std.posix.openat(self.dir.fd, name, .{ .ACCMODE = .RDONLY, .DIRECTORY = true, .CLOEXEC = true }, 0) };
        errdefer file.close();
        if (!try file.tryLock(.shared)) return error.WouldBlock;
        return file;
    }

    pub fn release(_: *FolderStore, held: Hold) void {
        held.close();
    }

    /// "." or a folder in it.
    pub fn sync_folder(self: *FolderStore, name: []const u8) !void {
        const fd = try std.posix.openat(self.dir.fd, name, .{ .ACCMODE = .RDONLY, .DIRECTORY = true, .CLOEXEC = true }, 0);
        defer std.posix.close(fd);
        return std.posix.fsync(fd);
    }

    pub fn exists(self: *FolderStore, name: []const u8) !bool {
        self.dir.access(name, .{}) catch |err| switch (err) {
            error.FileNotFound => return false,
            else => return err,
        };
        return true;
    }

    /// Names in the folder itself, folders among them; all memory is `arena`'s.
    pub fn list(self: *FolderStore, arena: std.mem.Allocator) ![]const []const u8 {
        var names: std.ArrayList([]const u8) = .empty;
        // A descriptor of its own: the position of the shared one belongs to all users of the folder.
        var dir = try self.dir.openDir(".", .{ .iterate = true });
        defer dir.close();
        var iterator = dir.iterate();
        while (try iterator.next()) |entry| try names.append(arena, try arena.dupe(u8, entry.name));
        return names.items;
    }

    /// The whole file, mapped: what is never read takes no memory.
    pub fn map(self: *FolderStore, name: []const u8) !Map {
        const file = try self.open_regular(name, .RDONLY);
        defer file.close();
        const length: usize = @intCast(try file.getEndPos());
        if (length == 0) return error.EndOfStream;
        return std.posix.mmap(null, length, std.posix.PROT.READ, .{ .TYPE = .SHARED }, file.handle, 0);
    }

    pub fn unmap(_: *FolderStore, bytes: Map) void {
        std.posix.munmap(bytes);
    }
};

test "a shared folder stays open for its last user, wherever it is moved" {
    var tmp = std.testing.tmpDir(.{ .iterate = true });
    defer tmp.cleanup();
    try tmp.dir.makeDir("first");
    const shared = try SharedFolder.create(try tmp.dir.openDir("first", .{ .iterate = true }));
    var stores = [_]FolderStore{ .of(shared), .of(shared) };
    shared.release();
    stores[0].deinit();
    try tmp.dir.rename("first", "moved");
    try tmp.dir.makeDir("first");
    const file = try stores[1].create("a");
    stores[1].close(file);
    try tmp.dir.access("moved/a", .{});
    var arena = std.heap.ArenaAllocator.init(std.testing.allocator);
    defer arena.deinit();
    for (0..2) |_| try std.testing.expectEqual(1, (try stores[1].list(arena.allocator())).len);
    stores[1].deinit();
}

test "one handle writes at a time" {
    var tmp = std.testing.tmpDir(.{ .iterate = true });
    defer tmp.cleanup();
    const path = try tmp.dir.realpathAlloc(std.testing.allocator, ".");
    defer std.testing.allocator.free(path);
    var first = try FolderStore.open(path);
    var second = try FolderStore.open(path);
    defer second.deinit();
    try std.testing.expect(try first.lock_for_writing());
    try std.testing.expect(!try second.lock_for_writing());
    first.deinit();
    try std.testing.expect(try second.lock_for_writing());
}
