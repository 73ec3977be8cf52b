document.getElementById("page").textContent = "Llamapool";
